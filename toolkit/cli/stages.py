"""`toolkit profile stages`: ranges of lengths for decode workers, by a profile and a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from toolkit.policies.stages.partition import Partition
    from toolkit.policies.stages.population import Population
    from toolkit.policies.stages.qoe import Qoe
    from toolkit.settings.deployment import Deployment

ADVISED_AGAINST = 3
"""Exit status where stages do not pay."""


def stages(
    folder: Annotated[Path, typer.Argument(help="A profile folder with a QoE fit.")],
    trace: Annotated[
        Path | None, typer.Option(help="Azure CSV, Mooncake JSONL or lengths CSV (.gz is fine).")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Text file instead: PROMPT OUTPUT in tokens, a line each.")
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a router instead: its requests that decode now. Of several routers over "
            "the same workers each knows its own: name them all.",
            show_default=False,
        ),
    ] = None,
    api_key_env: Annotated[str, typer.Option(help="Variable with those routers' key.")] = "",
    deployment: Annotated[
        str | None, typer.Option(help="Deployment file or recipe whose decode workers are staged.")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="Decode ranks instead of a deployment's.")
    ] = None,
    in_flight: Annotated[
        float | None,
        typer.Option(
            help="Requests that decode at a time, however long they take [default: as many as come "
            "of the rate]."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second [default: the trace's].")
    ] = None,
    move_ms: Annotated[
        float, typer.Option(min=0, help="Price of a move, in ms of a request's time.")
    ] = 0.0,
    move_token_us: Annotated[
        float, typer.Option(min=0, help="And for each KV token that moves, in microseconds.")
    ] = 0.0,
    mixed_ns: Annotated[
        float,
        typer.Option(
            min=0,
            help="Nanoseconds of a step for each KV token by which the longest request is above "
            "the batch's mean; the fit cannot tell them.",
        ),
    ] = 0.0,
    most: Annotated[int | None, typer.Option(min=1, help="Stages at most.")] = None,
    heuristic: Annotated[
        bool, typer.Option("--heuristic", help="The two-phase heuristic, not the exact program.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="The plain least-squares fit, as published.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="Write a copy of the deployment file with these stages.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --into.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write --into though stages do not pay.")
    ] = False,
) -> None:
    """Plan stages of decode workers: which lengths, and how many workers for each.

    Exit status 3: stages do not pay here, and why.
    """
    from toolkit.errors import ToolkitError
    from toolkit.policies.stages.partition import MoveCost, StageProblem
    from toolkit.policies.stages.qoe import Qoe
    from toolkit.policies.stages.staging import METHODS, against
    from toolkit.profile_folder.store import read

    try:
        target = StagesTarget.of(deployment, instances, into, force)
        whose = _whose(trace, lengths, live or [], api_key_env)
        latency = read(folder)[0].latency
        if latency is None:
            raise ToolkitError(f"{folder} has no latency fits: its steps were not logged")
        qoe = Qoe.of_profile(latency, published, mixed_ns * 1e-9)
        fit = latency.qoe_published if published else latency.qoe
        error = 0.0 if fit is None else fit.held_out_error
        population, tokens_per_s = whose.population(in_flight, rate)
        move_s = MoveCost(move_ms * 1e-3, move_token_us * 1e-6)
        problem = StageProblem(population, target.instances, qoe, move_s, None, most, tokens_per_s)
        found = METHODS["heuristic" if heuristic else "exact"](problem)
        why = against(found, qoe, error)
        _show(found, population, qoe, error)
        if why:
            typer.secho(f"advice: leave stages out: {why}", fg="yellow", err=True)
        if into is not None and (anyway or not why):
            target.write(found, into, qoe)
    except (ToolkitError, ValueError) as error_:
        typer.secho(f"error: {error_}", fg="red", err=True)
        raise typer.Exit(1) from error_
    if why:
        raise typer.Exit(ADVISED_AGAINST)


class StagesTarget:
    """The decode ranks that are shared out, and the file that says so."""

    def __init__(self, instances: int, file: Path | None = None) -> None:
        self.instances = instances
        self.file = file

    @classmethod
    def of(
        cls, deployment: str | None, instances: int | None, into: Path | None, force: bool
    ) -> StagesTarget:
        """ToolkitError: what is given does not go together, said before anything is computed."""
        from toolkit.cli.launch import find_deployment, find_file
        from toolkit.errors import ToolkitError
        from toolkit.plan.plain_data import refuse

        if into is not None:
            refuse(into, force)
        if deployment is None:
            if into is not None:
                raise ToolkitError("--into writes a copy of a file: say which, --deployment FILE")
            if instances is None:
                raise ToolkitError("say how many decode ranks: --deployment FILE or --instances N")
            return cls(instances)
        if instances is not None:
            raise ToolkitError("--deployment says how many decode ranks there are: no --instances")
        file = find_file(deployment)
        made = cls(_ranks(find_deployment(deployment)), file)
        if into is not None and _moves(file, into):
            raise ToolkitError(f"{file} has relative paths: write --into a file in its own folder")
        return made

    def write(self, found: Partition, into: Path, qoe: Qoe) -> None:
        """`qoe`: by which the router lets stages follow the lengths that come, where it says what
        mixed ones cost. LaunchError: the copy would be no good deployment; nothing is written."""
        from toolkit.bounded_files import load_yaml
        from toolkit.launch.state import write_whole
        from toolkit.launch.yaml_edit import with_key
        from toolkit.settings.load import load_deployment
        from toolkit.settings.router.rebalance import following, keys_of

        assert self.file is not None
        name, follow = str(self.file), following(qoe)
        text = with_key(self.file.read_text(), "decode", "stages", _plain(found), name)
        router = (load_yaml(text) or {}).get("router") or {}
        keys = keys_of(router.get("rebalance")) if isinstance(router, dict) else None
        if follow and keys is not None:
            text = with_key(text, "router", "rebalance", keys | follow, name)
        elif follow:
            typer.echo(
                "stages will not follow the lengths that come: the file has no moves", err=True
            )
        draft = into.with_name(f".{into.name}.draft")
        try:
            write_whole(draft, text, 0o600)
            load_deployment(draft)
        finally:
            draft.unlink(missing_ok=True)
        write_whole(into, text, 0o644)
        typer.echo(f"written: {into}  (toolkit launch {into})")


def _moves(file: Path, into: Path) -> bool:
    """Whether the file would mean something else where the copy is to be."""
    from toolkit.settings.document import moved, normal
    from toolkit.settings.yaml_lines import read_document

    document = normal(read_document(file)[0])
    return moved(document, file.parent, into.parent) != document


def _ranks(deployment: Deployment) -> int:
    """Of its decode workers; with DP attention the servers, whose ranks take steps together."""
    from toolkit.errors import ToolkitError

    if deployment.mode != "pd":
        raise ToolkitError(f"mode {deployment.mode} has no decode workers: use mode: pd")
    decode = deployment.decode
    return decode.replicas * (1 if decode.dp_attention else decode.dp)


def _plain(found: Partition) -> list[dict[str, int]]:
    return [
        ({} if stage.upto is None else {"upto": stage.upto}) | {"replicas": stage.replicas}
        for stage in found.layout.stages
    ]


@dataclass(frozen=True)
class PlannedTraffic:
    """What is planned for: (prompt, output tokens) of a trace's requests, of which `rate` come a
    second (0: nobody says), or with `live` (prompt, KV tokens) of those that decode now."""

    lengths: list[tuple[int, int]]
    rate: float = 0.0
    live: bool = False

    def population(self, in_flight: float | None, rate: float | None) -> tuple[Population, float]:
        """How requests spread over lengths, and output tokens a second; 0: as many are in flight as
        the population has. ToolkitError, ValueError: nobody says either, or nobody answers."""
        from toolkit.errors import ToolkitError
        from toolkit.policies.stages.population import of_answers, of_live

        if self.live:
            return of_live(self.lengths), 0.0
        if in_flight is not None:
            return of_answers(self.lengths, in_flight), 0.0
        rate = rate or self.rate
        if not rate:
            raise ToolkitError("these lengths have no times: say --in-flight N, or --rate R")
        tokens = sum(output for _, output in self.lengths) / len(self.lengths)
        return of_answers(self.lengths, 1.0), rate * tokens


def _whose(
    trace: Path | None, lengths: Path | None, live: list[str], key_env: str
) -> PlannedTraffic:
    from toolkit.bench.traces import load
    from toolkit.errors import ToolkitError
    from toolkit.profile.answer_lengths import ask_live, read_lengths

    if [trace is not None, lengths is not None, bool(live)].count(True) != 1:
        raise ToolkitError("say whose lengths: --trace FILE, --lengths FILE or --live URL, one")
    if live:
        return PlannedTraffic(ask_live(live, _secret(key_env)), live=True)
    if lengths is not None:
        return PlannedTraffic(read_lengths(lengths))
    assert trace is not None
    rows = load(trace)
    stamps = [row.stamp_s for row in rows if row.stamp_s is not None]
    span = max(stamps) - min(stamps) if stamps else 0.0
    rate = (len(stamps) - 1) / span if span > 0 else 0.0
    return PlannedTraffic([(row.input_tokens, row.output_tokens) for row in rows], rate)


def _secret(variable: str) -> str | None:
    from toolkit.keys import from_environment

    return from_environment(variable) if variable else None


def _show(found: Partition, population: Population, qoe: Qoe, error: float) -> None:
    from rich.table import Table

    from toolkit.report import terminal

    table = Table(title="stages of decode workers", title_justify="left")
    for heading in ("lengths", "workers", "requests each", "KV tokens each", "ms by token"):
        table.add_column(heading, justify="right")
    for row in _rows(found, population, qoe):
        table.add_row(*row)
    console = terminal.console()
    terminal.show(console, table)
    console.print(
        f"{sum(found.requests):.4g} requests in flight: {1000 * found.token_s:.3g} ms by output "
        f"token in the mean, moves included; {1000 * found.even_s:.3g} ms in one stage: "
        f"{found.gain:.1%} less. The fit is {error:.1%} off on requests that it "
        "has not seen.",
        markup=False,
    )


def _rows(found: Partition, population: Population, qoe: Qoe) -> list[tuple[str, ...]]:
    low = 0
    rows: list[tuple[str, ...]] = []
    for place, stage in enumerate(found.layout.stages):
        end = (
            len(population.bounds)
            if stage.upto is None
            else population.bounds.index(stage.upto) + 1
        )
        there = population.sums(low, end)
        each = there.times(found.requests[place] / there.requests).over(stage.replicas)
        low = end
        figures: list[Any] = [stage.replicas, f"{each.requests:.1f}", f"{each.kv:,.0f}"]
        figures.append(f"{1000 * qoe.token_s(each):.2f}")
        rows.append((found.layout.shown(place), *map(str, figures)))
    return rows
