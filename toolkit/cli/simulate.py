"""`toolkit simulate`: policies on a simulated fleet of any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli import arriving as common

if TYPE_CHECKING:
    from toolkit.simulate.fleet import Fleet
    from toolkit.simulate.session import Outcome, Setting


def simulate(
    deployment: common.File,
    cost: common.Cost = "embedded",
    trace: common.Trace = None,
    traffic: common.TrafficFile = None,
    rate: common.Rate = None,
    seconds: common.Seconds = 600.0,
    limit: common.Limit = None,
    speedup: common.Speedup = 1.0,
    time_unit: common.TimeUnit = 1.0,
    longest_gap: common.LongestGap = None,
    scale: common.Scale = "1",
    concurrency: common.Concurrency = None,
    ls_share: common.LsShare = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies: A,B,.. each [PREFILL+]DECODE, or with mode: plain just one [default: "
            "the deployment's]."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    experts: common.ExpertProfile = None,
    placement: common.ExpertPlacement = None,
    kv_tokens: common.KvTokens = None,
    slots: common.Slots = None,
    slo_ttft_ms: common.SloTtft = None,
    slo_tpot_ms: common.SloTpot = None,
    slo_ls_ttft_ms: common.SloLsTtft = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for all figures.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML page: loads, balance, CDFs.")] = None,
) -> None:
    """Play traffic through a simulated deployment: the router's own policies, at any scale.

    The first of --compare is divided by each other one, on the same requests, with 95 % intervals
    over the seeds.
    """
    from dataclasses import replace

    from toolkit.errors import ToolkitError
    from toolkit.simulate.session import run

    arriving = common.Arriving(
        *(trace, traffic, rate, seconds, limit, speedup, time_unit, longest_gap, scale),
        ls_share=ls_share,
    )
    try:
        whose = common.Whose(experts, placement)
        setting = _setting(deployment, cost, arriving, compare, whose, kv_tokens, slots)
        described = _described(deployment, setting.fleet, arriving.source, cost)
        slo = common.limits(slo_ttft_ms, slo_tpot_ms, slo_ls_ttft_ms)
        setting = replace(setting, seeds=seeds, in_flight=concurrency, slo=slo)
        outcome = run(setting, lambda text: typer.secho(text, err=True, dim=True))
    except (ToolkitError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    _show(outcome, output)
    if report is not None:
        from toolkit.simulate.page import render

        page = render(outcome, described[0], described[1])
        report.write_text(page)
        typer.echo(f"report: {report}")


def _described(deployment: str, fleet: Fleet, source: str, cost: str) -> tuple[str, str]:
    """Title and first sentence of the report."""
    decode, count = fleet.worker or fleet.decode, fleet.prefill.replicas
    ranks = "with DP attention" if decode.dp_attention else "on their own"
    prefills = f"{count} prefill worker{'' if count == 1 else 's'} and "
    who = "ranks that prefill and decode" if fleet.worker else "decode ranks"
    facts = (
        f"{'' if fleet.worker else prefills}{fleet.decode_ranks} {who} "
        f"{ranks}, {decode.slots} requests and {decode.kv_tokens:,} KV tokens each; "
        f"traffic from {source}; step times from {cost}."
    )
    stopping = (fleet.worker or fleet.prefill).preempt
    if stopping is not None:
        rules, layers = stopping.rules, stopping.layers
        how = f"every {rules.slice} of {layers} layers" if layers > 1 else "between chunks"
        facts += f" Best-effort prompts give way ({rules.policy}), {how}."
    return Path(deployment).stem, facts


def _setting(
    deployment: str,
    cost: str,
    arriving: common.Arriving,
    compare: str | None,
    whose: common.Whose,
    kv_tokens: int | None,
    slots: int | None,
) -> Setting:
    from toolkit.cli.launch import find_deployment
    from toolkit.simulate.costs import load, machine_of
    from toolkit.simulate.of_deployment import fleet_of
    from toolkit.simulate.session import Setting

    requests = arriving.requests()
    described = find_deployment(deployment)
    steps = load(cost)
    fleet = fleet_of(described, kv_tokens, slots, machine_of(steps))
    known = whose.experts(described)
    arms = [fleet.router.decode_policy] if compare is None else compare.split(",")
    return Setting(fleet, steps, requests, arms, experts=known)


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
