"""The stages of a run whose traffic switches: before, until the router has refitted, after."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.bench.runner import FEW_STEPS, RunOutcome

STAGES = ("before", "switched", "refitted", "refitted_again")


@dataclass(frozen=True)
class Refit:
    """One line of the router's history: `at`, on the clock of samples, and its numbers."""

    at: float
    numbers: Mapping[str, Any]

    @property
    def adopted(self) -> bool:
        return bool(self.numbers["result"] == "adopted")


@dataclass(frozen=True)
class Run:
    """One seed: what came of the workload by policy, and the drift refits of `ours`."""

    ours: str
    outcomes: Mapping[str, RunOutcome]
    refits: tuple[Refit, ...]
    switch: int
    """The number of the first request of the new traffic."""

    def sent(self, policy: str, at: float) -> int:
        """Requests that were sent before a moment. A closed loop sends them in order."""
        return sum(sample.start_time < at for sample in self.outcomes[policy].samples)

    def settled(self, count: int) -> int:
        """Requests that were sent when the first `count` had ended, the most of both policies."""
        ends = {
            policy: max(s.start_time + s.latency for s in outcome.samples[:count])
            for policy, outcome in self.outcomes.items()
        }
        return max(self.sent(policy, end) for policy, end in ends.items())

    @property
    def switched_at(self) -> float:
        """When the first request of the new traffic was sent, on the clock of samples."""
        return self.outcomes[self.ours].samples[self.switch].start_time

    @property
    def adoptions(self) -> list[Refit]:
        """The refits that were adopted while the new traffic was being sent."""
        last = self.outcomes[self.ours].samples[-1].start_time
        return [r for r in self.refits if r.adopted and self.switched_at < r.at < last]

    @property
    def changes(self) -> list[int]:
        """Requests that were sent at the switch and at each adoption after it."""
        return [self.switch, *(self.sent(self.ours, refit.at) for refit in self.adoptions)]

    def stages(self) -> dict[str, tuple[int, int]]:
        """By stage, the requests at whose starts it begins and ends."""
        last = len(self.outcomes[self.ours].samples) - 1
        full = max(
            self.sent(policy, min(s.start_time + s.latency for s in outcome.samples))
            for policy, outcome in self.outcomes.items()
        )
        begins = [full, *(self.settled(count) for count in self.changes)]
        ends = [*self.changes, last]
        return {
            name: (begin, end)
            for name, begin, end in zip(STAGES, begins, ends, strict=False)
            if begin < end
        }

    def metrics(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By stage and policy, what `Decode.metrics` gives; without stages of too few steps."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, (begin, end) in self.stages().items():
            both = {}
            for policy, outcome in self.outcomes.items():
                assert outcome.decode is not None, outcome.note
                times = (outcome.samples[number].start_time for number in (begin, end))
                both[policy] = outcome.decode.between(*times).metrics()
            if all(figures["decode_steps"] >= FEW_STEPS for figures in both.values()):
                found[name] = both
        return found
