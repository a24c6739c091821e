"""Best-effort prompts stopped between layers, against what SGLang alone offers, on real workers.

One prefill and one decode worker on the CPU, or with `--mode plain` one worker that does both, and
a deployment for each arm, side by side (those that are not asked sleep). Best-effort prompts of
2,000 to 3,900 tokens, latency-sensitive ones of 30 to 200, drawn with `--share` each; answers of 8
tokens. Every round plays the same requests once an arm, in balanced random order.

Arms: ours, `preempt` with the one of OURS, sizes of chunks, that has the least mean TTFT of
latency-sensitive requests in a round of its own (`--ours` names it); `fcfs`, whole prompts in order
of arrival; `best`, the one of CANDIDATES by the same figure in the same round (`--best` names it):
SGLang's `priority` or `shortest-prefill-first`, which makes room for short prompts in the chunks of
a long one, or `classes`, ours without stops between layers: latency-sensitive requests first, next
between two chunks. Each has chunks of several sizes. With `--mode plain` also `completion`, one
request at a time to its end (QLLM compares with a server that runs to completion). Each of `--also`
is one more (`experts@8`: ours, looked at after every 8th expert of a layer, too).

Parts (`--parts`):
  closed  `--in-flight` requests at a time: the prefill is never idle
  calm    best-effort requests only, two at a time: what the feature costs when no
          latency-sensitive request waits (SGLang as it is, overlap scheduler
          and all, is the other side)
  loads   Poisson arrivals at each of `--loads` of what `fcfs` carries in a closed loop

keys: of `closed`, ratios over rounds with 95 % intervals: ls_ttft_ratio_fcfs, ls_ttft_ratio_best,
ls_ttft_ratio_completion (mean TTFT, latency-sensitive), ls_ttft_ratio_idle (against the same
requests one at a time on idle workers), `latency_sensitive` (their number), be_throughput_ratio,
be_turnaround_ratio (best-effort prompt tokens a second and mean seconds from request to last token,
against `fcfs`; `_best` against `best`); longest_pause_s, `pauses_max` (of one request);
`preempted`, the best-effort requests that were stopped, and `different`, how many requests of all
got other tokens than under `fcfs`;
wait_over_slice_p99_ms (from a latency-sensitive request's arrival at the worker to its first
forward, without those of its class before it and without one slice), `wait_p50_ms`, `wait_p99_ms`,
`slice_p50_ms`; of each of `arms` also the `seconds` of a round, and where its prefill worker's went
(`long_s`, `short_s`, `stood_s`). calm_ratio: prompt tokens a second, ours / `fcfs`. Of
`loads`: `at`, for each load and arm mean and p99 TTFT, attainment of `--slos` (seconds);
rate_ratio_SLO: the highest rate at which 0.9 of latency-sensitive requests keep to it, ours / that
of the best other arm at this SLO (interpolated between loads; of an arm that keeps to it at every
load the highest one, said in `remarks`). The best one in a closed loop has small chunks, which
carry less: `--also` others.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.shared import preempt_trace as traces
from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.shared.eldr_rounds import say
from tests.benchmarks.shared.preempt_arms import (
    BE,
    LS,
    SHORT,
    Arm,
    Up,
    played,
    requests,
    side_by_side,
)
from toolkit.bench.arrivals import poisson
from toolkit.bench.client import Sample
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.workload import Item

MEASURES = (
    "toolkit/policies/preemption",
    "toolkit/policies/sjf.py",
    "patches/preempt",
    "patches/classes.py",
    "patches/pd/waiting_queue.py",
)

CANDIDATES = tuple(
    f"{kind}@{chunk}"
    for kind in ("classes", "shortest", "priority")
    for chunk in (256, 512, 1024, 4096)
)
OURS = tuple(f"preempt@{chunk}" for chunk in (512, 1024, 4096))
LAYERS = 6
"""Of the embedded model."""
KEPT = 0.9
STOPS = ("preempt", "experts")
"""Arms that stop prompts between layers."""
Figures = dict[str, float]


def figures(items: Sequence[Item], samples: Sequence[Sample], seconds: float) -> Figures:
    """Of a round of one arm; ms and tokens a second. A class that has no request has no figure."""
    found: Figures = {}
    of = {
        kind: [s for i, s in zip(items, samples, strict=True) if i.kind == kind]
        for kind in (LS, BE)
    }
    if of[LS]:
        ttft = [sample.ttft * 1e3 for sample in of[LS]]
        found["ls_ttft"] = statistics.fmean(ttft)
        found |= {f"ls_ttft_p{at}": percentile(ttft, at) for at in (50, 90, 99)}
    if of[BE]:
        tokens = sum(len(item.prompt) for item in items if item.kind == BE)
        found["be_rate"] = tokens / seconds
        found["be_turnaround"] = statistics.fmean(sample.latency * 1e3 for sample in of[BE])
    return found


class Rounds:
    """Plays the same requests under every arm, and keeps what came of it."""

    def __init__(self, session: Any, ups: Sequence[Up], seed: int) -> None:
        self.session, self.ups, self.seed = session, ups, seed
        self.found: dict[str, list[Figures]] = {up.arm.name: [] for up in ups}
        self.asked = 0

    async def play(
        self, drawn: Sequence[list[Item]], in_flight: int, names: Sequence[str] = ()
    ) -> dict[str, list[list[Sample]]]:
        """Rounds in a closed loop; every arm's answers, round by round."""
        ups = [up for up in self.ups if not names or up.arm.name in names]
        answers: dict[str, list[list[Sample]]] = {up.arm.name: [] for up in ups}
        for number, turns in enumerate(orders(len(ups), len(drawn), self.seed)):
            for turn in turns:
                up = ups[turn]
                began = time.monotonic()
                samples, seconds = await played(self.session, up, drawn[number], in_flight)
                answers[up.arm.name].append(samples)
                row = figures(drawn[number], samples, seconds) | {"seconds": seconds}
                row |= traces.spent(traces.since(up.batches(), began), SHORT[1])
                self.found[up.arm.name].append(row)
                self.asked += len(samples)
                say(f"{number + 1}/{len(drawn)} {shown(up.arm.name, row)}")
        return answers

    def ratio(self, key: str, name: str, ours: str, other: str) -> dict[str, float]:
        pair = ([row[key] for row in self.found[arm]] for arm in (ours, other))
        return paired_ratio(*pair).keys(name)


def shown(name: str, row: Figures) -> str:
    said = ", ".join(f"{key} {value:.4g}" for key, value in row.items())
    return f"{name:16} {said}"


async def warm(session: Any, ups: Sequence[Up]) -> None:
    for up in ups:
        await played(session, up, requests("warm", 6, 0.5), 2)


async def tuned(
    among: Sequence[str], mode: str, options: Any, folder: Path
) -> tuple[str, dict[str, Figures]]:
    """The best of these arms, and what each did; one at a time is up."""
    found: dict[str, Figures] = {}
    items = requests("tune", options.requests, options.share)
    for name in among:
        with side_by_side([Arm(name)], mode, folder / "tune") as ups:
            async with new_session(600.0) as session:
                await warm(session, ups)
                samples, seconds = await played(session, ups[0], items, options.in_flight)
        found[name] = figures(items, samples, seconds)
        say(shown(name, found[name]))
    return min(found, key=lambda name: found[name]["ls_ttft"]), found


async def closed(session: Any, ups: Sequence[Up], best: str, options: Any, result: Result) -> int:
    rounds = Rounds(session, ups, seed=1)
    drawn = [
        requests(f"closed-{number}", options.requests, options.share)
        for number in range(options.rounds)
    ]
    answers = await rounds.play(drawn, options.in_flight)
    mine = ups[0]
    ours, batches = mine.arm.name, mine.batches()
    for other in answers:
        if other != ours:
            name = "best" if other == best else other
            result.keys |= rounds.ratio("ls_ttft", f"ls_ttft_ratio_{name}", ours, other)
            end = "" if other == "fcfs" else f"_{name}"
            result.keys |= rounds.ratio("be_rate", f"be_throughput_ratio{end}", ours, other)
            result.keys |= rounds.ratio("be_turnaround", f"be_turnaround_ratio{end}", ours, other)
    result.keys["latency_sensitive"] = sum(item.kind == LS for items in drawn for item in items)
    result.keys["arms"] = {
        name: {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
        for name, rows in rounds.found.items()
    }
    idle = await alone(session, mine, drawn)
    both = [row["ls_ttft"] for row in rounds.found[ours]], idle
    result.keys |= paired_ratio(*both).keys("ls_ttft_ratio_idle")
    result.keys["ls_ttft_idle_ms"] = statistics.fmean(idle)
    lengths = traces.lengths_stopped(batches)
    result.keys["preempted"] = sum(
        len(item.prompt) in lengths for items in drawn for item in items if item.kind == BE
    )
    result.keys["different"] = sum(
        a.output_ids != b.output_ids
        for ours, others in zip(answers[ours], answers["fcfs"], strict=True)
        for a, b in zip(ours, others, strict=True)
    )
    result.keys |= waiting(batches)
    return rounds.asked


async def alone(session: Any, up: Up, drawn: Sequence[list[Item]]) -> list[float]:
    """Mean TTFT of each round's latency-sensitive requests when there is nothing else, ms. Turned
    round, so that no prefix cache has them."""
    found = []
    for items in drawn:
        own = [Item(item.prompt[::-1], item.output_tokens) for item in items if item.kind == LS]
        samples, _ = await played(session, up, own, 1)
        found.append(statistics.fmean(sample.ttft * 1e3 for sample in samples))
    return found


def waiting(batches: Sequence[traces.Batch]) -> dict[str, Any]:
    found = traces.waits(batches, SHORT[1], LAYERS, 1)
    slices = [wait.slice_s * 1e3 for wait in found if wait.slice_s]
    over = [wait.over_s * 1e3 for wait in found if wait.slice_s]
    waited = [wait.waited_s * 1e3 for wait in found]
    counts = traces.stopped(batches).values()
    return {
        "wait_p50_ms": percentile(waited, 50),
        "wait_p99_ms": percentile(waited, 99),
        "slice_p50_ms": percentile(slices, 50),
        "wait_over_slice_p99_ms": percentile(over, 99),
        "met_a_batch": len(over),
        "longest_pause_s": traces.longest_pause_s(batches),
        "pauses_max": max(counts, default=0),
    }


async def calm(session: Any, ups: Sequence[Up], options: Any, result: Result) -> int:
    rounds = Rounds(session, ups, seed=2)
    count = max(8, options.requests // 4)
    drawn = [requests(f"calm-{number}", count, 0.0) for number in range(2 * options.rounds)]
    ours = ups[0].arm.name
    await rounds.play(drawn, 2, (ours, "fcfs"))
    result.keys |= rounds.ratio("be_rate", "calm_ratio", ours, "fcfs")
    return rounds.asked


async def loads(session: Any, ups: Sequence[Up], best: str, options: Any, result: Result) -> int:
    """Fills `at` and the ratios of rates."""
    mine = ups[0].arm.name
    capacity_items = requests("capacity", options.requests, options.share)
    fcfs = next(up for up in ups if up.arm.name == "fcfs")
    samples, seconds = await played(session, fcfs, capacity_items, options.in_flight)
    capacity, asked = len(samples) / seconds, len(samples)
    at: dict[str, dict[str, list[Figures]]] = {}
    slos = [float(text) for text in options.slos.split(",")]
    for load in (float(text) for text in options.loads.split(",")):
        rows: dict[str, list[Figures]] = {up.arm.name: [] for up in ups}
        for number, turns in enumerate(orders(len(ups), options.rounds, 3)):
            items = requests(f"load-{load}-{number}", options.requests, options.share)
            times = poisson(load * capacity, len(items), number)
            for turn in turns:
                samples, seconds = await played(session, ups[turn], items, at=times)
                row = figures(items, samples, seconds)
                row |= {f"kept_{slo:g}": kept(items, samples, slo) for slo in slos}
                rows[ups[turn].arm.name].append(row)
                asked += len(samples)
                say(f"load {load:g} {number + 1}/{options.rounds} {shown(ups[turn].arm.name, row)}")
        at[f"{load:g}"] = rows
        for other in rows:
            if other != mine:
                pair = ([row["ls_ttft"] for row in rows[arm]] for arm in (mine, other))
                name = "best" if other == best else other
                result.keys |= paired_ratio(*pair).keys(f"ls_ttft_ratio_{name}_at_{load:g}")
    means = {
        load: {
            arm: {key: statistics.fmean(row[key] for row in each) for key in each[0]}
            for arm, each in rows.items()
        }
        for load, rows in at.items()
    }
    result.keys |= {"at": means, "capacity": capacity}
    remarks: list[str] = []
    for slo in slos:
        arms = next(iter(means.values()))
        highest = {arm: highest_load(means, arm, f"kept_{slo:g}") for arm in arms}
        for arm, (load, end) in highest.items():
            if end:
                remarks.append(f"{arm} keeps to {slo:g} s at {'every' if load else 'no'} load")
        ours = highest[mine][0]
        theirs = max(load for arm, (load, _) in highest.items() if Arm(arm).kind not in STOPS)
        result.keys[f"rate_ratio_{slo:g}"] = ours / theirs if theirs else float("inf")
    result.keys["remarks"] = remarks
    return asked


def kept(items: Sequence[Item], samples: Sequence[Sample], slo: float) -> float:
    """Share of latency-sensitive requests whose first token came in time."""
    mine = [s.ttft <= slo for item, s in zip(items, samples, strict=True) if item.kind == LS]
    return statistics.fmean(mine) if mine else 1.0


def highest_load(at: dict[str, dict[str, Figures]], arm: str, key: str) -> tuple[float, bool]:
    """The load at which `key` falls below KEPT, between two of `at`; and whether it never did, or
    was below at the first one (0)."""
    points = sorted((float(load), rows[arm][key]) for load, rows in at.items())
    if points[0][1] < KEPT:
        return 0.0, True
    for (low, above), (high, below) in pairwise(points):
        if below < KEPT:
            return low + (high - low) * (above - KEPT) / (above - below), False
    return points[-1][0], True


async def measure(options: Any, folder: Path, result: Result) -> int:
    best, ours = options.best, options.ours
    candidates: dict[str, Figures] = {}
    if not best:
        best, candidates = await tuned(CANDIDATES, options.mode, options, folder)
    if not ours:
        ours, own = await tuned(OURS, options.mode, options, folder)
        candidates |= own
    result.keys |= {"mode": options.mode, "best": best, "ours": ours, "share": options.share}
    if candidates:
        result.keys["candidates"] = candidates
    names = [ours, "fcfs", best]
    if options.mode == "plain":
        names.append("completion")
    names += [name for name in options.also.split(",") if name]
    parts, asked = options.parts.split(","), 0
    with side_by_side([Arm(name) for name in names], options.mode, folder) as ups:
        async with new_session(600.0) as session:
            await warm(session, ups)
            if "closed" in parts:
                asked += await closed(session, ups, best, options, result)
            if "calm" in parts:
                asked += await calm(session, ups, options, result)
            if "loads" in parts:
                kept = [up for up in ups if up.arm.name != "completion"]
                asked += await loads(session, kept, best, options, result)
    return asked


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--mode", {"choices": ("pd", "plain"), "default": "pd"}),
        ("--parts", {"default": "closed,calm,loads"}),
        ("--rounds", {"type": int, "default": 5}),
        ("--requests", {"type": int, "default": 100, "help": "of each round"}),
        ("--share", {"type": float, "default": 0.2, "help": "of latency-sensitive requests"}),
        ("--in-flight", {"type": int, "default": 4}),
        ("--loads", {"default": "0.7,0.85,0.95"}),
        ("--slos", {"default": "0.1,0.25,0.5", "help": "seconds to the first token"}),
        ("--best", {"default": "", "help": "ARM, in place of looking for it"}),
        ("--ours", {"default": "", "help": "the same of ours"}),
        ("--also", {"default": "", "help": "ARM,.. beside these"}),
    )
    if options.quick:
        options.rounds, options.requests, options.parts = 1, 16, "closed"
        options.best = options.best or "shortest@512"
        options.ours = options.ours or "preempt"
    unknown = set(options.parts.split(",")) - {"closed", "calm", "loads"}
    if unknown:
        raise BenchError(f"--parts: {', '.join(sorted(unknown))} is none of closed, calm, loads")
    result = Result()
    with tempfile.TemporaryDirectory(prefix="preempt-") as folder:
        asked = asyncio.run(measure(options, Path(folder), result))
    result.emit(asked)


if __name__ == "__main__":
    main()
