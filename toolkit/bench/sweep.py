"""`--sweep LOW:HIGH`: request rates up to the goodput knee, several runs at each.

Every rate plays the same requests, in each run others or at least other arrivals, of a Poisson
process whose gaps are the same but for the rate. Policies take turns at their own rates run by run,
so that a machine that drifts does so for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.compare import Arm, restored
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import by_class, turn_metrics
from toolkit.bench.knee import KneeSearch
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.runner import BenchLoad, check, play
from toolkit.bench.several import empty_caches
from toolkit.bench.stats import orders
from toolkit.bench.swept import Curve, Point, Range, Swept
from toolkit.bench.target import Target, get_json, switch
from toolkit.bench.workload import Workload
from toolkit.report.terminal import Lines, console

if TYPE_CHECKING:
    import aiohttp

LONG = 3
"""A run whose arrivals last less than so many answers has hardly been in a steady state."""


def at_rate(workload: Workload, rate: float) -> Workload:
    """A workload that was made for one request a second, played at `rate`."""
    items = (replace(item, arrival_s=item.arrival_s / rate) for item in workload)
    return replace(workload, items=tuple(items))


async def sweep(
    session: aiohttp.ClientSession,
    target: Target,
    runs: Sequence[Workload],
    load: BenchLoad,
    slo: Slo,
    asked: Range,
    arms: Sequence[Arm],
    seed: int,
    report: Callable[[str], None] = lambda line: None,
) -> Swept:
    """`runs`: a workload each, made for one request a second. Restores the router's policies.

    Raises BenchError on a play that is no result, naming policy, rate and run; requests that the
    router refused for want of room are one, outside the SLO.
    """
    state = await get_json(session, target.url + "/workers") if arms else None
    if arms and not state:
        raise BenchError("--compare needs this project's router: GET /workers is missing here")
    names: Sequence[Arm | None] = arms or (None,)
    found = Swept(
        asked, [Curve(arm, asked, KneeSearch(asked.low, asked.high, asked.within)) for arm in names]
    )
    lines = _Progress(found, report)
    try:
        for arm in arms:  # a policy that the router refuses is an error now, not in mid-run
            await switch(session, target, arm.body)
        while going := [(c, rate) for c in found.curves if (rate := c.search.next()) is not None]:
            points = [Point(rate) for _, rate in going]
            for run, order in enumerate(orders(len(going), asked.runs, seed)):
                for index in order:
                    curve, rate = going[index]
                    if curve.arm is not None:
                        await switch(session, target, curve.arm.body)
                    flushed = await empty_caches(session, target)
                    workload = at_rate(runs[run], rate)
                    metrics = await _play(
                        session, target, workload, load, slo, f"{curve.name} {rate:g}/s", found
                    )
                    if not flushed:
                        _say(found, "a worker did not empty its prefix cache between the runs")
                    points[index].runs.append(metrics)
                    lines.say(curve, rate, run, metrics)
            for (curve, rate), point in zip(going, points, strict=True):
                curve.found.append(point)
                curve.search.tell(rate, point.share >= asked.attainment)
    finally:
        if state:
            await switch(session, target, restored(state))
    return found


async def _play(
    session: aiohttp.ClientSession,
    target: Target,
    workload: Workload,
    load: BenchLoad,
    slo: Slo,
    name: str,
    found: Swept,
) -> dict[str, Any]:
    outcome = await play(session, target, workload, load)
    try:
        check(outcome, len(workload), refusals=True)
    except BenchError as error:
        raise BenchError(f"{name}: {error}".strip()) from error
    metrics = summarise(outcome.samples, outcome.duration_s, slo)
    metrics |= turn_metrics(workload, outcome.samples)
    if classes := by_class(workload, outcome.samples, outcome.duration_s, slo):
        metrics[CLASSES] = classes
    if outcome.decode is not None:
        metrics |= outcome.decode.metrics()
    for remark in outcome.remarks():
        _say(found, remark)
    lasted = workload.items[-1].arrival_s
    if lasted < LONG * metrics["mean_e2e_latency_ms"] / 1000:
        _say(
            found,
            f"at some rates all requests had come within less than {LONG} answers' time: queues "
            "had no time to grow, and the knee may lie lower; ask for more --num-requests",
        )
    return metrics


def _say(found: Swept, remark: str) -> None:
    if remark not in found.remarks:
        found.remarks.append(remark)


class _Progress:
    """One line a run, as it ends."""

    HEADS = ("requests/s, run", "within SLO, %", "goodput/s", "TTFT p50, ms", "TPOT p50, ms")

    def __init__(self, found: Swept, report: Callable[[str], None]) -> None:
        longest = max((curve.name for curve in found.curves), key=len)
        widest = (f"9999.99 99/99 {longest}", "100.0", "9999.99", "99999.9", "9999.9")
        self._lines = Lines(self.HEADS, widest, console().width)
        self._report, self._runs = report, found.asked.runs
        report(self._lines.head)

    def say(self, curve: Curve, rate: float, run: int, metrics: dict[str, Any]) -> None:
        cells = [
            f"{rate:>7.6g} {run + 1}/{self._runs} {curve.name}".rstrip(),
            f"{100 * metrics['goodput_fraction']:.1f}",
            f"{metrics['goodput']:.2f}",
            f"{metrics['median_ttft_ms']:.1f}",
            f"{metrics['median_tpot_ms']:.1f}",
        ]
        self._report(self._lines.row(cells))
