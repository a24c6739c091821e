"""`toolkit plan`: the settings that serve given traffic best, found in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.arriving import Arriving, DraftOptions, Simulated, Sizes, SloOptions, Whose
from toolkit.cli.grouped import grouped

if TYPE_CHECKING:
    from toolkit.plan.expert_layout import Layouts, RelocationCost
    from toolkit.plan.objective import PlanSlo
    from toolkit.plan.planner import Planned, Task
    from toolkit.settings.deployment import Deployment
    from toolkit.simulate.costs.base import CostModel

SEARCH = "search"
MISSED = 3
"""Exit status where the objectives cannot be met."""


@dataclass(frozen=True)
class PlacementOptions(Whose):
    """Whose experts requests use, and where these lie or may lie."""

    placement: Annotated[
        str | None,
        typer.Option(
            help="As of simulate; or search: linear, eplb, joint and by nodes, with how many "
            "redundant experts."
        ),
    ] = None
    expert_drift: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --placement search: decode steps in which traffic becomes another's, for "
            "how often experts should be moved [default: it does not].",
        ),
    ] = None
    move_gb_s: Annotated[
        float | None,
        typer.Option(
            help="At which experts move between the GPUs of a server, all together [default: 1 for "
            "a search; --systems asks for yours]."
        ),
    ] = None

    @property
    def searched(self) -> bool:
        return self.placement == SEARCH

    @property
    def given(self) -> Whose:
        """Without what is searched."""
        return Whose(self.profile, None if self.searched else self.placement)

    def layouts(self, deployment: Deployment, cost: CostModel, systems: bool) -> Layouts | None:
        """Where experts may lie; None where that is not searched. ToolkitError: options that do
        not go together, or nothing to place."""
        from toolkit.errors import ToolkitError
        from toolkit.plan.placing import layouts_of

        if self.searched:
            folder = self.given.folder(deployment)
            return layouts_of(deployment, folder, cost, self._moving(systems))
        if self.expert_drift is not None:
            raise ToolkitError("--expert-drift is of --placement search")
        return None

    def _moving(self, systems: bool) -> RelocationCost | None:
        """What moving takes; None where no expert is moved. PlanError: that is needed."""
        from toolkit.plan.errors import PlanError
        from toolkit.plan.expert_layout import RelocationCost

        drift, rate = self.expert_drift, self.move_gb_s
        if drift is None and (rate is None or not systems):
            return None
        if rate is None and systems:
            raise PlanError("--systems --expert-drift: say --move-gb-s, too")
        return RelocationCost(drift, (1.0 if rate is None else rate) * 1e9)


@dataclass(frozen=True)
class ObjectiveOptions(SloOptions):
    """What is to be met."""

    attainment: Annotated[
        float,
        typer.Option(
            help="Share of requests, and of latency-sensitive ones where these have a limit of "
            "their own, that must be within the limits."
        ),
    ] = 0.9

    def slo(self) -> PlanSlo:
        """PlanError: a limit or a share that is none."""
        from toolkit.plan.objective import PlanSlo

        ttft, tpot, urgent = self.limits
        return PlanSlo(ttft, tpot, self.attainment, urgent)


@dataclass(frozen=True)
class Looked:
    """How much is looked at."""

    workers: Annotated[
        int | None,
        typer.Option(help="Prefill and decode replicas in all [default: the file's GPUs]."),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, help="Runs that predict.")] = 3
    budget: Annotated[int, typer.Option(min=1, help="Simulations at most.")] = 200
    screen: Annotated[
        int, typer.Option(min=1, help="Requests of a quick look, while searching.")
    ] = 2000


@dataclass(frozen=True)
class SystemsOptions:
    """In place of a search: which systems can pay."""

    systems: Annotated[
        bool,
        typer.Option(
            "--systems",
            help="Search nothing: say of each system whether it can pay here, against its "
            "strongest alternative, and why.",
        ),
    ] = False
    capture: Annotated[
        float,
        typer.Option(
            min=0.0, help="With --systems: share by which capturing experts lengthens a prefill."
        ),
    ] = 0.02


@dataclass(frozen=True)
class Files:
    """What is to be written."""

    out: Annotated[Path | None, typer.Option(help="Deployment file to write.")] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out.")] = False
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write --out though the limits cannot be met.")
    ] = False
    json: Annotated[Path | None, typer.Option("--json", help="JSON file for everything.")] = None

    def check(self, placed: bool) -> None:
        """PlanError now, and not after a long search. `placed`: a placement may be written too."""
        from toolkit.plan.plain_data import refuse

        if self.out is not None:
            refuse(self.out, self.force)
            if placed:
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
        from toolkit.plan.plain_data import write
        from toolkit.plan.tables import head
        from toolkit.settings.document import moved

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
        found = moved(document, made.task.given.folder, self.out.parent)
        write(self.out, found, head(made, _command(file), file), self.force)
        typer.echo(f"written: {self.out}  (toolkit launch {self.out})")


@grouped
def plan(
    simulated: Simulated,
    arriving: Arriving,
    placed: PlacementOptions,
    sizes: Sizes,
    draft: DraftOptions,
    wanted: ObjectiveOptions,
    looked: Looked,
    asking: SystemsOptions,
    files: Files,
) -> None:
    """Search split, policies, their knobs and batch limits for this traffic; write the best file.

    Exit status 3: no setting meets the limits; what would be needed is said.
    """
    from dataclasses import replace

    from toolkit.errors import ToolkitError
    from toolkit.plan.planner import make

    try:
        slo = wanted.slo()
        files.check(placed.searched)
        task = _task(simulated, arriving, placed, sizes, draft, slo, asking.systems)
        task = task.sized(looked.seeds, looked.workers, looked.budget, looked.screen)
        task = replace(task, in_flight=arriving.concurrency)
        if asking.systems:
            _answer(task, asking, files, simulated.deployment)
            return
        made = make(task, lambda text: typer.secho(text, err=True, dim=True))
        _show(made)
        files.write(made, simulated.deployment)
    except (ToolkitError, ValueError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    if not made.met:
        raise typer.Exit(MISSED)


def _task(
    simulated: Simulated,
    arriving: Arriving,
    placed: PlacementOptions,
    sizes: Sizes,
    draft: DraftOptions,
    slo: PlanSlo,
    systems: bool,
) -> Task:
    from toolkit.cli.launch import find_deployment, find_file
    from toolkit.plan.candidate import Given
    from toolkit.plan.measured import check
    from toolkit.plan.planner import Task
    from toolkit.settings.yaml_lines import read_document
    from toolkit.simulate.costs import load, machine_of

    whose, requests = placed.given, arriving.requests()
    deployment = find_deployment(simulated.deployment)
    data, _ = read_document(find_file(simulated.deployment))
    check(deployment, simulated.cost, whose.folder(deployment))
    steps = load(simulated.cost)
    given = Given(
        deployment.folder, sizes.kv_tokens, sizes.slots, machine_of(steps), draft.costs(steps)
    )
    experts, layouts = whose.experts(deployment), placed.layouts(deployment, steps, systems)
    return Task(data, given, steps, requests, slo, experts=experts, layouts=layouts)


def _answer(task: Task, asking: SystemsOptions, files: Files, file: str) -> None:
    """PlanError: nothing can be asked, or a file that is not written so."""
    from toolkit.launch.state import write_json
    from toolkit.plan.errors import PlanError
    from toolkit.plan.systems import answer
    from toolkit.plan.tables import systems
    from toolkit.report import terminal

    if files.out is not None:
        raise PlanError("--systems writes no deployment file: leave --out away, or --systems")
    found = answer(task, asking.capture, lambda text: typer.secho(text, err=True, dim=True))
    console = terminal.console()
    terminal.show(console, systems(found, f"which systems can pay for {Path(file).stem}?"))
    for each in found.answers:
        if each.because:
            console.print(f"{each.system}: {each.because}", markup=False)
    console.print(f"{found.simulations} simulations", markup=False)
    if files.json is not None:
        write_json(files.json, found.to_json())


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
