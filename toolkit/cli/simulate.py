"""`toolkit simulate`: policies on a simulated fleet of any size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.arriving import Arriving, DraftOptions, Simulated, Sizes, SloOptions, Whose
from toolkit.cli.grouped import grouped

if TYPE_CHECKING:
    from toolkit.simulate.fleet import Fleet
    from toolkit.simulate.session import Outcome, SimulationSetting


@dataclass(frozen=True)
class Compared:
    """What is compared, and how often it is played."""

    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies: A,B,.. each [PREFILL+]DECODE, or with mode: plain just one [default: "
            "the deployment's]."
        ),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3


@dataclass(frozen=True)
class Written:
    """Where the result goes."""

    output: Annotated[Path | None, typer.Option(help="JSON file for all figures.")] = None
    report: Annotated[Path | None, typer.Option(help="HTML page: loads, balance, CDFs.")] = None


@grouped
def simulate(
    simulated: Simulated,
    arriving: Arriving,
    compared: Compared,
    whose: Whose,
    sizes: Sizes,
    draft: DraftOptions,
    judged: SloOptions,
    written: Written,
) -> None:
    """Play traffic through a simulated deployment: the router's own policies, at any scale.

    The first of --compare is divided by each other one, on the same requests, with 95 % intervals
    over the seeds.
    """
    from dataclasses import replace

    from toolkit.errors import ToolkitError
    from toolkit.simulate.session import run

    try:
        setting = _setting(simulated, arriving, compared, whose, sizes, draft)
        setting = replace(setting, slo=judged.limits)
        described = _described(simulated, setting.fleet, arriving.source)
        outcome = run(setting, lambda text: typer.secho(text, err=True, dim=True))
    except (ToolkitError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    _show(outcome, written.output)
    if written.report is not None:
        from toolkit.simulate.page import render

        page = render(outcome, described[0], described[1])
        written.report.write_text(page)
        typer.echo(f"report: {written.report}")


def _described(simulated: Simulated, fleet: Fleet, source: str) -> tuple[str, str]:
    """Title and first sentence of the report."""
    decode, count = fleet.worker or fleet.decode, fleet.prefill.replicas
    ranks = "with DP attention" if decode.dp_attention else "on their own"
    prefills = f"{count} prefill worker{'' if count == 1 else 's'} and "
    who = "ranks that prefill and decode" if fleet.worker else "decode ranks"
    facts = (
        f"{'' if fleet.worker else prefills}{fleet.decode_ranks} {who} "
        f"{ranks}, {decode.slots} requests and {decode.kv_tokens:,} KV tokens each; "
        f"traffic from {source}; step times from {simulated.cost}."
    )
    stopping = (fleet.worker or fleet.prefill).preempt
    if stopping is not None:
        rules, layers = stopping.rules, stopping.layers
        how = f"every {rules.slice} of {layers} layers" if layers > 1 else "between chunks"
        facts += f" Best-effort prompts give way ({rules.policy}), {how}."
    if fleet.drafting is not None:
        found = fleet.drafting
        facts += f" A step verifies {found.verified} tokens of a request and gives it "
        facts += f"{found.accepted:.2f}."
    return Path(simulated.deployment).stem, facts


def _setting(
    simulated: Simulated,
    arriving: Arriving,
    compared: Compared,
    whose: Whose,
    sizes: Sizes,
    draft: DraftOptions,
) -> SimulationSetting:
    from toolkit.cli.launch import find_deployment
    from toolkit.simulate.costs import load, machine_of
    from toolkit.simulate.of_deployment import fleet_of
    from toolkit.simulate.session import SimulationSetting

    requests = arriving.requests()
    described = find_deployment(simulated.deployment)
    steps = load(simulated.cost)
    known_draft = draft.costs(steps)
    fleet = fleet_of(described, sizes.kv_tokens, sizes.slots, machine_of(steps), known_draft)
    known = whose.experts(described)
    own = [fleet.router.decode_policy]
    arms = own if compared.compare is None else compared.compare.split(",")
    return SimulationSetting(
        fleet, steps, requests, arms, compared.seeds, known, in_flight=arriving.concurrency
    )


def _show(outcome: Outcome, output: Path | None) -> None:
    import json

    from toolkit.report.terminal import console as made
    from toolkit.report.terminal import show
    from toolkit.simulate.tables import by_class, class_ratios, figures, moves, ratios

    console = made()
    show(console, figures(outcome))
    if outcome.moving:
        show(console, moves(outcome))
    for table in by_class(outcome):
        show(console, table)
    if len(outcome.arms) > 1:
        show(console, ratios(outcome))
        if outcome.classes:
            show(console, class_ratios(outcome))
    console.print(f"{len(outcome.figures[0])} seeds, {outcome.seconds:.1f} s")
    if output is not None:
        found = dict(zip(outcome.arms, outcome.figures, strict=True))
        output.write_text(json.dumps(found, indent=1) + "\n")
