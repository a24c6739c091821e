"""`toolkit plan`: the settings that serve given traffic best, found in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli import arriving as common

if TYPE_CHECKING:
    from toolkit.plan.objective import Slo
    from toolkit.plan.planner import Planned, Task

SEARCH = "search"
MISSED = 3
"""Exit status where the objectives cannot be met."""


def plan(
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
    experts: common.ExpertProfile = None,
    placement: Annotated[
        str | None,
        typer.Option(
            help="As of simulate; or search: linear, eplb, joint and by nodes, with how many "
            "redundant experts."
        ),
    ] = None,
    expert_drift: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --placement search: decode steps in which traffic becomes another's, for "
            "how often experts should be moved [default: it does not].",
        ),
    ] = None,
    move_gb_s: Annotated[float, typer.Option(help="At which experts move between GPUs.")] = 1.0,
    kv_tokens: common.KvTokens = None,
    slots: common.Slots = None,
    slo_ttft_ms: common.SloTtft = None,
    slo_tpot_ms: common.SloTpot = None,
    slo_ls_ttft_ms: common.SloLsTtft = None,
    attainment: Annotated[
        float,
        typer.Option(
            help="Share of requests, and of latency-sensitive ones where these have a limit of "
            "their own, that must be within the limits."
        ),
    ] = 0.9,
    workers: Annotated[
        int | None,
        typer.Option(help="Prefill and decode replicas in all [default: the file's GPUs]."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs that predict.")] = 3,
    budget: Annotated[int, typer.Option(min=1, help="Simulations at most.")] = 200,
    screen: Annotated[
        int, typer.Option(min=1, help="Requests of a quick look, while searching.")
    ] = 2000,
    out: Annotated[Path | None, typer.Option(help="Deployment file to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write --out though the limits cannot be met.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--json", help="JSON file for everything.")] = None,
) -> None:
    """Search split, policies, their knobs and batch limits for this traffic; write the best file.

    Exit status 3: no setting meets the limits; what would be needed is said.
    """
    from dataclasses import replace

    from toolkit.cli.launch import find_deployment
    from toolkit.errors import ToolkitError
    from toolkit.plan.expert_layout import Moving
    from toolkit.plan.placing import layouts_of
    from toolkit.plan.planner import make

    arriving = common.Arriving(
        *(trace, traffic, rate, seconds, limit, speedup, time_unit, longest_gap, scale),
        ls_share=ls_share,
    )
    whose = common.Whose(experts, None if placement == SEARCH else placement)
    try:
        slo = _slo(slo_ttft_ms, slo_tpot_ms, slo_ls_ttft_ms, attainment)
        files = Files(out, force, anyway, output, placement == SEARCH)
        files.check()
        task = _task(deployment, cost, arriving, whose, kv_tokens, slots, slo)
        task = replace(task.sized(seeds, workers, budget, screen), in_flight=concurrency)
        if placement == SEARCH:
            moving = None if expert_drift is None else Moving(expert_drift, move_gb_s * 1e9)
            given = find_deployment(deployment)
            layouts = layouts_of(given, whose.folder(given), task.cost, moving)
            task = replace(task, layouts=layouts)
        elif expert_drift is not None:
            raise ToolkitError("--expert-drift is of --placement search")
        made = make(task, lambda text: typer.secho(text, err=True, dim=True))
        _show(made)
        files.write(made, deployment)
    except (ToolkitError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    if not made.met:
        raise typer.Exit(MISSED)


@dataclass(frozen=True)
class Files:
    """What is to be written."""

    out: Path | None
    force: bool
    anyway: bool
    json: Path | None
    placed: bool = False
    """Whether a placement may be written beside it."""

    def check(self) -> None:
        """PlanError now, and not after a long search."""
        from toolkit.plan.plain_data import refuse

        if self.out is not None:
            refuse(self.out, self.force)
            if self.placed:
                refuse(self._experts(self.out), self.force)
        if self.json is not None:
            refuse(self.json, force=True)

    @staticmethod
    def _experts(out: Path) -> Path:
        """Where a placement that was searched goes."""
        return out.with_suffix(".experts.json")

    def write(self, made: Planned, file: str) -> None:
        """The JSON in any case, the deployment where the limits are met or `anyway`."""
        from toolkit.launch.state import write_json
        from toolkit.plan import plain_data
        from toolkit.plan.tables import head

        if self.json is not None:
            write_json(self.json, made.to_json())
        if self.out is None:
            return
        if not made.met and not self.anyway:
            typer.echo(f"{self.out} is not written: --anyway writes the best that was found")
            return
        document = made.plan.document
        if made.task.layouts is not None:
            document = made.task.layouts.write(document, self._experts(self.out))
        found = plain_data.moved(document, made.task.given.folder, self.out.parent)
        plain_data.write(self.out, found, head(made, _command(file), file), self.force)
        typer.echo(f"written: {self.out}  (toolkit launch {self.out})")


def _slo(
    ttft_ms: float | None, tpot_ms: float | None, urgent_ms: float | None, attainment: float
) -> Slo:
    from toolkit.plan.objective import Slo

    ttft, tpot, urgent = common.limits(ttft_ms, tpot_ms, urgent_ms)
    return Slo(ttft, tpot, attainment, urgent)


def _task(
    file: str,
    cost: str,
    arriving: common.Arriving,
    whose: common.Whose,
    kv_tokens: int | None,
    slots: int | None,
    slo: Slo,
) -> Task:
    from toolkit.cli.launch import find_deployment, find_file
    from toolkit.plan.candidate import Given
    from toolkit.plan.measured import check
    from toolkit.plan.planner import Task
    from toolkit.settings.yaml_lines import read_document
    from toolkit.simulate.costs import load, machine_of

    requests = arriving.requests()
    deployment = find_deployment(file)
    data, _ = read_document(find_file(file))
    check(deployment, cost, whose.folder(deployment))
    steps = load(cost)
    given = Given(deployment.folder, kv_tokens, slots, machine_of(steps))
    return Task(data, given, steps, requests, slo, experts=whose.experts(deployment))


def _show(made: Planned) -> None:
    from toolkit.plan.tables import prediction, refusal, sentences, settings
    from toolkit.report import terminal

    console = terminal.console()
    terminal.show(console, prediction(made))
    if made.effects:
        terminal.show(console, settings(made))
    for text in sentences(made):
        console.print(text, markup=False)
    console.print(f"{made.simulations} simulations", markup=False)
    for text in () if made.met else refusal(made):
        typer.secho(text, fg="red", err=True)


def _command(file: str) -> str:
    import shlex
    import sys

    given = sys.argv[1:] if sys.argv[1:2] == ["plan"] else ["plan", file]
    return shlex.join(["toolkit", *given])
