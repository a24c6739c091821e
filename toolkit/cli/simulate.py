"""`toolkit simulate`: policies on a simulated fleet of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.simulate.fleet import Fleet
    from toolkit.simulate.request import Request
    from toolkit.simulate.session import Outcome, Setting


def simulate(
    deployment: Annotated[str, typer.Argument(help="Deployment file, or a recipe's name.")],
    cost: Annotated[
        str,
        typer.Option(
            help="What steps take: a folder of `toolkit profile`, a YAML file of coefficients, or "
            "embedded."
        ),
    ] = "embedded",
    trace: Annotated[
        Path | None, typer.Option(help="Azure CSV, Mooncake JSONL or lengths CSV (.gz is fine).")
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(help="YAML of made traffic: rate, kinds, clients, bursts, drift.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second: of lengths-only traces, or of conversations."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of conversations made with --rate.")] = 600.0,
    limit: Annotated[int | None, typer.Option(help="First requests of a trace.")] = None,
    speedup: Annotated[float, typer.Option(help="Play a trace so many times faster.")] = 1.0,
    time_unit: Annotated[
        float, typer.Option(help="A trace's times times this (1000: seconds taken for ms).")
    ] = 1.0,
    longest_gap: Annotated[
        float | None, typer.Option(help="Cut holes of a trace to so many seconds.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Factors of a trace's prompts and answers, as 0.1 or 0.1,0.5.")
    ] = "1",
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Closed loop: so many in flight, times are not looked at."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies: A,B,.. each [PREFILL+]DECODE, or with mode: plain just one [default: "
            "the deployment's]."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    experts: Annotated[
        str | None,
        typer.Option(help="Profile whose experts requests use (embedded, or a folder)."),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="KV pool of a rank that decodes, where the file does not say."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Requests such a rank runs, where the file does not say.")
    ] = None,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: TTFT limit.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: TPOT limit.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for all figures.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML page: loads, balance, CDFs.")] = None,
) -> None:
    """Play traffic through a simulated deployment: the router's own policies, at any scale.

    The first of --compare is divided by each other one, on the same requests, with 95 % intervals
    over the seeds.
    """
    from toolkit.bench.errors import BenchError
    from toolkit.launch.errors import LaunchError
    from toolkit.profile.errors import ProfileError
    from toolkit.simulate.errors import SimulateError
    from toolkit.simulate.session import run

    limits = tuple(float("inf") if x is None else x / 1e3 for x in (slo_ttft_ms, slo_tpot_ms))
    try:
        from toolkit.simulate.workloads.trace import TraceOptions

        factors = _factors(scale)
        options = TraceOptions(
            rate, speedup, longest_gap, time_unit, factors[0], factors[1], limit=limit
        )
        requests = _requests(trace, traffic, options, seconds)
        setting = _setting(deployment, cost, requests, compare, experts, kv_tokens, slots)
        described = _described(deployment, setting.fleet, trace or traffic, cost)
        from dataclasses import replace

        setting = replace(setting, seeds=seeds, in_flight=concurrency, slo=limits)  # type: ignore[arg-type]
        outcome = run(setting, lambda text: typer.secho(text, err=True, dim=True))
    except (BenchError, LaunchError, ProfileError, SimulateError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    _show(outcome, output)
    if report is not None:
        from toolkit.simulate.page import render

        page = render(outcome, described[0], described[1])
        report.write_text(page)
        typer.echo(f"report: {report}")


def _described(deployment: str, fleet: Fleet, source: Path | None, cost: str) -> tuple[str, str]:
    """Title and first sentence of the report."""
    decode, count = fleet.worker or fleet.decode, fleet.prefill.replicas
    ranks = "with DP attention" if decode.dp_attention else "on their own"
    prefills = f"{count} prefill worker{'' if count == 1 else 's'} and "
    who = "ranks that prefill and decode" if fleet.worker else "decode ranks"
    facts = (
        f"{'' if fleet.worker else prefills}{fleet.decode_ranks} {who} "
        f"{ranks}, {decode.slots} requests and {decode.kv_tokens:,} KV tokens each; "
        f"traffic from {source.name if source is not None else 'conversations'}; "
        f"step times from {cost}."
    )
    return Path(deployment).stem, facts


def _factors(text: str) -> tuple[float, float]:
    from toolkit.simulate.errors import SimulateError

    try:
        both = [float(part) for part in text.split(",")]
        if len(both) > 2 or min(both) <= 0:
            raise ValueError
    except ValueError as error:
        raise SimulateError(f"--scale is one or two factors above 0, not {text!r}") from error
    return both[0], both[-1]


def _requests(
    trace: Path | None, traffic: Path | None, options: object, seconds: float
) -> Callable[[int], Iterator[Request]]:
    from toolkit.simulate.errors import SimulateError
    from toolkit.simulate.workloads.trace import TraceOptions, of_trace
    from toolkit.simulate.workloads.traffic import Traffic, azure_like, generate

    assert isinstance(options, TraceOptions)
    if trace is not None and traffic is not None:
        raise SimulateError("give --trace or --traffic, not both")
    if trace is not None:
        said: set[str] = set()

        def remark(text: str) -> None:
            if text not in said:
                said.add(text)
                typer.secho(text, err=True, fg="yellow")

        return lambda seed: of_trace(trace, options, seed, remark)
    if traffic is not None:
        from toolkit.simulate.documents import read

        made = read(traffic, Traffic)
        return lambda seed: generate(made, seed)
    if options.rate is None:
        raise SimulateError("say what arrives: --trace FILE, --traffic FILE, or --rate R")
    made = azure_like(options.rate, seconds)
    return lambda seed: generate(made, seed)


def _setting(
    deployment: str,
    cost: str,
    requests: Callable[[int], Iterator[Request]],
    compare: str | None,
    experts: str | None,
    kv_tokens: int | None,
    slots: int | None,
) -> Setting:
    from toolkit.cli.launch import find_deployment
    from toolkit.launch.locality import read_locality
    from toolkit.resources import profiles_dir
    from toolkit.simulate.costs import load
    from toolkit.simulate.experts import Experts
    from toolkit.simulate.of_deployment import fleet_of
    from toolkit.simulate.session import Setting

    described = find_deployment(deployment)
    fleet = fleet_of(described, kv_tokens, slots)
    if experts is None:
        profiled = read_locality(described)
        folder = None if profiled is None else profiled.folder
    else:
        folder = str(profiles_dir() / "embedded") if experts == "embedded" else experts
    known = None if folder is None else Experts.of_profile(folder)
    arms = [fleet.router.decode_policy] if compare is None else compare.split(",")
    return Setting(fleet, load(cost), requests, arms, experts=known)


def _show(outcome: Outcome, output: Path | None) -> None:
    import json

    from rich.console import Console

    from toolkit.simulate.tables import figures, ratios

    console = Console()
    console.print(figures(outcome))
    if len(outcome.arms) > 1:
        console.print(ratios(outcome))
    console.print(f"{len(outcome.figures[0])} seeds, {outcome.seconds:.1f} s")
    if output is not None:
        found = dict(zip(outcome.arms, outcome.figures, strict=True))
        output.write_text(json.dumps(found, indent=1) + "\n")
