"""One invocation of `toolkit bench` against a router that is up: run, judge, describe."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.bench.build import Source, build
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import by_name, by_turn, turn_metrics
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.phases import by_phase
from toolkit.bench.runner import Load, check, new_session, play
from toolkit.bench.target import Target, discover
from toolkit.bench.watch import requests_per_worker
from toolkit.bench.workload import Label, Workload

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides a run, apart from where the router is."""

    source: Source
    load: Load
    slo: Slo
    warmup: int = 2
    arms: tuple[Arm, ...] = ()
    rounds: int = 6
    api_key: str | None = None


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


async def measure(
    url: str, settings: Settings, say: Callable[[str], None] = lambda line: None
) -> Report:
    """Run the workload (or the comparison) once against `url`.

    Raises BenchError when the run is no result; see `runner.check`.
    """
    if settings.load.label is not None and settings.source.trace is not None:
        raise BenchError("--label is for prompts; a --trace has no domains")
    async with new_session(settings.load.timeout_s, settings.api_key) as session:
        target = await discover(session, url.rstrip("/"))
        workload = build(settings.source, target, settings.load.open_loop)
        _check_labels(workload, settings.load.label)
        say(f"{len(workload)} requests, workload {workload.digest}, model {target.model}")
        # Cut before anything is sent: rounds that cannot be filled are an error at once.
        rounds = _rounds(workload, settings) if settings.arms else []
        await _warm_up(session, target, workload, settings)
        if settings.arms:
            return await _compare(session, target, workload, rounds, settings, say)
        return await _single(session, target, workload, settings)


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
    part = Workload("warm-up", workload.items[: settings.warmup])
    load = Load(settings.load.endpoint, concurrency=2, timeout_s=settings.load.timeout_s)
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
    groups = by_name(*played) if settings.source.prompts is not None else {}
    document = describe(target, workload, settings, outcome.before)
    document |= {
        "metrics": metrics,
        "requests_per_worker": workers,
        "decode_workers": decode,
        "decode_by_batch": outcome.decode.by_batch() if outcome.decode is not None else None,
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
    document = describe(target, workload, settings, None) | {"comparison": comparison.as_json()}
    return Report(document, remarks=comparison.remarks, comparison=comparison)


def describe(
    target: Target, workload: Workload, settings: Settings, state: dict[str, Any] | None
) -> dict[str, Any]:
    """Enough to run it again, and to know what it ran on. Holds no prompt and no key."""
    source = asdict(settings.source)
    source = {
        key: str(value) if key in ("prompts", "trace", "tokenizer") else value
        for key, value in source.items()
    }
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
        "machine": {
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "system": platform.platform(),
        },
        "url": target.url,
        "model": target.model,
        "workload": {"name": workload.name, "hash": workload.digest, "requests": len(workload)},
        "source": source,
        "load": asdict(settings.load),
        "slo": asdict(settings.slo),
        "policies": (state or {}).get("policies"),
        "dispatch": (state or {}).get("dispatch"),
    }


def versions() -> dict[str, str | None]:
    """Versions of what takes part; None: not installed here."""
    from importlib.metadata import PackageNotFoundError, version

    from toolkit import __version__

    found: dict[str, str | None] = {"toolkit": __version__, "python": platform.python_version()}
    for name in ("sglang", "torch", "aiohttp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
