"""Requests of a recorded trace, one at a time: a trace of any length needs no memory."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.bench.traces import TraceRow, stream
from toolkit.contract.request_class import RequestClass
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.request import Request

DENSE = 5000.0
"""Requests a second. More are a sign of wrong units."""
LOOK = 200
"""Requests after which that is asked."""


@dataclass(frozen=True)
class TraceOptions:
    """`rate`: requests a second in the mean, for traces without times (Poisson); `speedup` divides
    the times of the others; `longest_gap`: seconds, what a hole is cut to; `unit`: seconds that one
    unit of the file's times is in addition to its format's own (0.001: they were microseconds, not
    milliseconds); `prompts`, `answers`: factors; `longest`: (prompt, answer) tokens at most."""

    rate: float | None = None
    speedup: float = 1.0
    longest_gap: float | None = None
    unit: float = 1.0
    prompts: float = 1.0
    answers: float = 1.0
    longest: tuple[int, int] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "speedup", "longest_gap", "unit", "prompts", "answers", "limit"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SimulateError(f"{name} must be above 0, not {value:g}")


def of_trace(
    path: Path,
    options: TraceOptions | None = None,
    seed: int = 0,
    remark: Callable[[str], None] = lambda text: None,
) -> Iterator[Request]:
    """The requests, from time 0.

    Arrivals on a coarse grid (Mooncake's 3 s) are spread at random until the next one. `remark` is
    told of holes: a gap of over 100 times the mean one, and over 30 s.

    Raises SimulateError: no request, times that go back (with the line), or so dense that the unit
    must be another one. BenchError: what `toolkit.bench.traces` refuses, with the line.
    """
    o = options or TraceOptions()
    source = random.Random(f"trace-{seed}")
    number = -1
    for number, (at, row) in enumerate(_timed(path, o, source, remark)):
        if number == o.limit:
            return
        block = max(1, round(row.block * o.prompts))
        prompt = max(1, round(row.input_tokens * o.prompts))
        answer = max(1, round(row.output_tokens * o.answers))
        if o.longest is not None:
            prompt, answer = min(prompt, o.longest[0]), min(answer, o.longest[1])
        # `hash_ids` name single blocks; a chain names what came before, too.
        yield Request(
            number,
            at,
            prompt,
            answer,
            blocks=_chained(row.hash_ids),
            block=block,
            request_class=row.request_class or RequestClass.STANDARD,
        )
    if number < 0:
        raise SimulateError(f"{path}: no request with input and output tokens in it")


def _chained(ids: tuple[int, ...]) -> tuple[int, ...]:
    chain, found = 0, []
    for each in ids:
        chain = hash((chain, each))
        found.append(chain)
    return tuple(found)


def _timed(
    path: Path, o: TraceOptions, source: random.Random, remark: Callable[[str], None]
) -> Iterator[tuple[float, TraceRow]]:
    """(seconds from the first one, row), spread inside grid steps, ascending."""
    same: list[TraceRow] = []
    stamp, clock, step, first, seen = 0.0, 0.0, float("inf"), None, 0
    for line, row in stream(path):
        if row.stamp_s is None:
            if o.rate is None:
                raise SimulateError(
                    f"{path} has lengths only: say how many requests a second arrive (--rate)"
                )
            clock += source.expovariate(o.rate)
            yield clock, row
            continue
        seen += 1
        now = row.stamp_s * o.unit / o.speedup
        if first is None:
            first = stamp = now
        gap = now - stamp
        if gap < 0:
            raise SimulateError(
                f"{path}:{line}: the time goes back by {-gap * o.speedup:g} s: "
                "sort the trace by time"
            )
        if gap > 0:
            step = min(step, gap)
            mean = (stamp - first) / max(seen - 1, 1)
            if gap > max(30.0, 100 * mean) and seen > LOOK:
                remark(f"{path}:{line}: a hole of {gap:.0f} s")
            if seen > LOOK:
                _check_density(path, seen, now - first)
            yield from _spread(same, clock, step if len(same) > 1 else 0.0, source)
            same = []
            clock += gap if o.longest_gap is None else min(gap, o.longest_gap)
            stamp = now
        same.append(row)
    yield from _spread(same, clock, step if len(same) > 1 and step < float("inf") else 0.0, source)


def _spread(
    rows: list[TraceRow], begin: float, width: float, source: random.Random
) -> Iterator[tuple[float, TraceRow]]:
    moments = sorted(source.random() * width for _ in rows)
    yield from ((begin + moment, row) for moment, row in zip(moments, rows, strict=True))


def _check_density(path: Path, seen: int, seconds: float) -> None:
    if seen > DENSE * seconds:
        raise SimulateError(
            f"{path}: {seen} requests in {seconds:.3g} s, over {DENSE:.0f} a second: are its times "
            "in another unit? --time-unit 1000 takes milliseconds for seconds"
        )
