"""Workloads whose mix changes in mid-run: drift, and floods of one domain or language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from toolkit.bench.errors import BenchError
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.workload import Workload

if TYPE_CHECKING:
    from toolkit.bench.runner import RunOutcome


@dataclass(frozen=True, slots=True)
class TrafficPhase:
    """So many requests of one mix, written `requests=200 languages=en:1,zh:1 domains=code`.

    `max_tokens` and `rate` (requests/s, open loop) are the run's own when None.
    """

    requests: int
    domains: str = "all"
    languages: str = "all"
    max_tokens: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BenchError(f"a phase needs {name} of at least 1, not {value}")
        if self.rate is not None and not self.rate > 0:
            raise BenchError(f"a phase needs a rate above 0, not {self.rate}")

    @classmethod
    def parse(cls, text: str) -> TrafficPhase:
        """Raises BenchError for anything but `key=value` parts of known keys."""
        kinds: dict[str, Any] = {"requests": int, "max_tokens": int, "rate": float}
        known = ", ".join(each.name for each in fields(cls))
        values: dict[str, Any] = {}
        for part in text.split():
            key, equals, value = part.partition("=")
            if not equals or key not in {each.name for each in fields(cls)}:
                raise BenchError(f"--phase {text!r}: {part!r} is not KEY=VALUE with one of {known}")
            try:
                values[key] = kinds.get(key, str)(value)
            except ValueError as error:
                raise BenchError(f"--phase {text!r}: {value!r} is no number") from error
        if "requests" not in values:
            raise BenchError(f"--phase {text!r} does not say how many: requests=200")
        return cls(**values)

    @property
    def mix(self) -> str:
        return f"domains={self.domains} languages={self.languages}"


def by_phase(
    workload: Workload, outcome: RunOutcome, phases: Sequence[TrafficPhase], slo: Slo | None
) -> list[dict[str, Any]]:
    """The metrics of each phase: of its own requests at the client, and of all decode steps that
    ended between its first request and the next phase's first.

    At a border requests of both phases run together, so the first steps of a phase still decode
    the one before. Needs every sample, in the workload's order.
    """
    numbers = [item.phase for item in workload]
    own = {
        phase: [s for s, n in zip(outcome.samples, numbers, strict=True) if n == phase]
        for phase in dict.fromkeys(numbers)
    }
    # On Linux perf_counter, which samples have, is the clock that monotonic is.
    starts = [min(sample.start_time for sample in samples) for samples in own.values()]
    ends = [*starts[1:], max(s.start_time + s.latency for s in outcome.samples)]
    found = []
    for (number, samples), start, end in zip(own.items(), starts, ends, strict=True):
        entry: dict[str, Any] = {"phase": number, "mix": phases[number].mix}
        entry |= {"start_s": start - starts[0], "end_s": end - starts[0]}
        entry |= summarise(samples, max(end - start, 1e-9), slo)
        if outcome.decode is not None:
            # What came before the first request or after the last answer did so on the clock only.
            since = 0.0 if start == starts[0] else start
            until = float("inf") if end == ends[-1] else end
            entry |= outcome.decode.between(since, until).metrics()
        found.append(entry)
    return found
