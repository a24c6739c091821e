"""One invocation of `toolkit bench` against a router that is up: run, judge, describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.build import build
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.described import describe
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import CLASS_ALONE, NAMES, by_name, by_turn, turn_metrics
from toolkit.bench.loads import over_time
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.phases import by_phase
from toolkit.bench.runner import BenchLoad, check, new_session, play
from toolkit.bench.several import empty_caches, joined, joined_groups, over_runs, plain
from toolkit.bench.source import Source
from toolkit.bench.sweep import sweep
from toolkit.bench.swept import Range, Swept
from toolkit.bench.target import Target, discover
from toolkit.bench.watch import requests_per_worker
from toolkit.bench.workload import Label, Workload, backwards

if TYPE_CHECKING:
    import aiohttp


ONE_RUN = (
    "requests_per_worker",
    "decode_workers",
    "decode_by_batch",
    "decode_loads",
    "phases",
    "turns",
    "groups",
    "client_late_ms",
    "client_cpu",
)
"""Parts of the document that are a list with one entry a run where there are several runs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides a run, apart from where the router is."""

    source: Source
    load: BenchLoad
    slo: Slo
    warmup: int = 2
    arms: tuple[Arm, ...] = ()
    rounds: int = 6
    api_key: str | None = None
    runs: int = 1
    """Of the whole load; a sweep has its own."""
    sweep: Range | None = None


@dataclass(slots=True)
class Report:
    """`document` is what goes into the JSON file."""

    document: dict[str, Any]
    metrics: dict[str, Any] | None = None
    workers: dict[str, int] | None = None
    decode: dict[str, dict[str, Any]] | None = None
    """By decode worker, what `toolkit.bench.decode` gives; None: `remarks` say why."""
    phases: list[dict[str, Any]] | None = None
    turns: list[dict[str, Any]] | None = None
    """By turn of a conversation; see `toolkit.bench.groups`."""
    groups: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    comparison: Comparison | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    """The metrics of each, where there are several; `metrics` then has their means."""
    swept: Swept | None = None


async def measure(
    url: str,
    settings: Settings,
    say: Callable[[str], None] = lambda line: None,
    others: Sequence[str] = (),
) -> Report:
    """Run the workload (or the comparison) once against `url`, and `others` that have the same
    workers.

    Raises BenchError when the run is no result; see `runner.check`.
    """
    drawn = settings.load.label == "class" and settings.source.ls_share is not None
    if settings.load.label is not None and settings.source.trace is not None and not drawn:
        raise BenchError("--label is for prompts; a --trace has no domains")
    _check_repeats(settings)
    async with new_session(settings.load.timeout_s, settings.api_key) as session:
        target = await discover(session, url.rstrip("/"), [each.rstrip("/") for each in others])
        works = _workloads(settings, target)
        workload = works[0]
        _check_labels(workload, settings.load.label)
        say(f"{len(workload)} requests, workload {workload.digest}, model {target.model}")
        # Cut before anything is sent: rounds that cannot be filled are an error at once.
        paired = settings.arms and settings.sweep is None
        rounds = _rounds(workload, settings) if paired else []
        await _warm_up(session, target, workload, settings)
        if settings.sweep is not None:
            return await _sweep(session, target, works, settings, say)
        if settings.arms:
            return await _compare(session, target, workload, rounds, settings, say)
        if settings.runs > 1:
            return await _several(session, target, works, settings, say)
        return await _single(session, target, workload, settings)


def _check_repeats(settings: Settings) -> None:
    """BenchError: runs or a sweep that do not go with the other options."""
    source, swept = settings.source, settings.sweep
    if settings.runs < 1:
        raise BenchError("--runs must be at least 1")
    if settings.runs > 1 and settings.arms:
        raise BenchError("--compare has --rounds in place of --runs")
    if swept is None:
        return
    if settings.slo.ttft_ms is None and settings.slo.tpot_ms is None:
        raise BenchError("--sweep needs to know what is good: --slo-ttft-ms, --slo-tpot-ms or both")
    if source.rate is not None or source.speedup != 1 or any(p.rate for p in source.phases):
        raise BenchError("--sweep says the rates: leave --rate, --speedup and a phase's rate= out")


def _workloads(settings: Settings, target: Target) -> list[Workload]:
    """One a run: other requests, where they are drawn, and other arrivals. A sweep's are made for
    one request a second."""
    source, swept = settings.source, settings.sweep
    runs = settings.runs if swept is None else swept.runs
    made = [replace(source, seed=source.seed + run) for run in range(runs)]
    if swept is not None:
        made = [replace(each, rate=1.0) for each in made]
    return [build(each, target, settings.load.open_loop) for each in made]


def _check_labels(workload: Workload, label: Label | None) -> None:
    """BenchError: the label that the router is to be told is missing somewhere."""
    missing = sum(not item.label(label) for item in workload)
    if label is not None and missing:
        needed = "domain and language" if label == "cell" else label
        raise BenchError(
            f"--label {label}: {missing} of {len(workload)} requests of {workload.name} have no "
            f"{needed}; give each row of --prompts its own"
        )


async def _warm_up(
    session: aiohttp.ClientSession, target: Target, workload: Workload, settings: Settings
) -> None:
    """A few requests that are not counted: connections, lazy imports, first-call costs."""
    if settings.warmup < 1:
        return
    part = Workload("warm-up", tuple(map(backwards, workload.items[: settings.warmup])))
    load = BenchLoad(settings.load.endpoint, concurrency=2, timeout_s=settings.load.timeout_s)
    check(await play(session, target, part, load), len(part))


async def _single(
    session: aiohttp.ClientSession, target: Target, workload: Workload, settings: Settings
) -> Report:
    outcome = await play(session, target, workload, settings.load)
    check(outcome, len(workload))
    played = (workload, outcome.samples, outcome.duration_s, settings.slo)
    metrics = summarise(*played[1:]) | turn_metrics(*played[:2])
    decode = phases = None
    if outcome.decode is not None:
        metrics |= outcome.decode.metrics()
        decode = outcome.decode.by_worker()
    if settings.source.phases:
        phases = by_phase(workload, outcome, settings.source.phases, settings.slo)
    workers = requests_per_worker(outcome.before, outcome.after)
    remarks = [*workload.remarks, *outcome.remarks()]
    turns = by_turn(*played)
    # The project's prompts have domains and languages, too: too many to be told one by one.
    told = NAMES if settings.source.prompts is not None else CLASS_ALONE
    groups = by_name(*played, names=told)
    document = describe(
        target, workload, settings.source, settings.load, settings.slo, outcome.before
    )
    document |= {
        "metrics": metrics,
        "requests_per_worker": workers,
        "decode_workers": decode,
        "decode_by_batch": outcome.decode.by_batch() if outcome.decode is not None else None,
        "decode_loads": over_time(outcome.decode) if outcome.decode is not None else None,
        "remarks": remarks,
        "phases": phases,
        "turns": turns,
        "groups": groups,
        "client_late_ms": outcome.late_ms,
        "client_cpu": outcome.client_cpu,
        "ttfts": [sample.ttft for sample in outcome.samples],
        "e2e_latencies": [sample.latency for sample in outcome.samples],
        "input_lens": [sample.prompt_len for sample in outcome.samples],
        "output_lens": [sample.output_len for sample in outcome.samples],
        "domains": [sample.domain for sample in outcome.samples],
    }
    return Report(document, metrics, workers, decode, phases, turns, groups, remarks)


async def _several(
    session: aiohttp.ClientSession,
    target: Target,
    works: list[Workload],
    settings: Settings,
    say: Callable[[str], None],
) -> Report:
    """Runs one after the other, prefix caches emptied before each: means, and what they vary."""
    parts = []
    remarks: dict[str, None] = {}
    for number, workload in enumerate(works):
        if not await empty_caches(session, target):
            remarks["a worker did not empty its prefix cache between the runs"] = None
        part = await _single(session, target, workload, settings)
        remarks |= dict.fromkeys(part.remarks)
        parts.append(part)
        ttft = (part.metrics or {})["median_ttft_ms"]
        say(f"run {number + 1} of {len(works)}: TTFT p50 {ttft:.1f} ms")
    runs = [part.metrics or {} for part in parts]
    metrics, document = joined(runs), parts[0].document
    document |= {"metrics": metrics, "runs": runs, "remarks": list(remarks)}
    document["over_runs"] = {key: plain(each) for key, each in over_runs(runs).items()}
    for key in ("ttfts", "e2e_latencies", "input_lens", "output_lens", "domains"):
        document[key] = [value for part in parts for value in part.document[key]]
    # Of these the first run's would be taken for all of them.
    for key in ONE_RUN:
        document[key] = [part.document[key] for part in parts]
    groups = joined_groups([part.groups for part in parts])
    return Report(document, metrics, groups=groups, remarks=list(remarks), runs=runs)


async def _sweep(
    session: aiohttp.ClientSession,
    target: Target,
    works: list[Workload],
    settings: Settings,
    say: Callable[[str], None],
) -> Report:
    assert settings.sweep is not None
    swept = await sweep(
        session,
        target,
        works,
        settings.load,
        settings.slo,
        settings.sweep,
        settings.arms,
        settings.source.seed,
        say,
    )
    remarks = [*works[0].remarks, *swept.remarks]
    document = describe(target, works[0], settings.source, settings.load, settings.slo)
    document |= {"sweep": swept.as_json(), "remarks": remarks}
    return Report(document, remarks=remarks, swept=swept)


def _rounds(workload: Workload, settings: Settings) -> list[Workload]:
    try:
        return workload.rounds(settings.rounds)
    except ValueError as error:
        raise BenchError(f"{error}; ask for more requests or fewer --rounds") from error


async def _compare(
    session: aiohttp.ClientSession,
    target: Target,
    workload: Workload,
    rounds: list[Workload],
    settings: Settings,
    say: Callable[[str], None],
) -> Report:
    comparison = await compare(
        session,
        target,
        rounds,
        settings.load,
        list(settings.arms),
        settings.source.seed,
        settings.slo,
        say,
    )
    comparison.remarks = [*workload.remarks, *comparison.remarks]
    document = describe(target, workload, settings.source, settings.load, settings.slo)
    document["comparison"] = comparison.as_json()
    return Report(document, remarks=comparison.remarks, comparison=comparison)
