"""What a partition into stages is to be good at, and what one is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.population import Population
from toolkit.policies.stages.qoe import Qoe

if TYPE_CHECKING:
    import numpy as np

NEVER = 1e12
"""Quality of a stage that cannot keep up, times by how much."""


@dataclass(frozen=True)
class MoveCost:
    """What it costs, in seconds of all requests' time, to move one with so many KV tokens: `base_s`
    and `token_s` for each of them. Measured by `tests.benchmarks.migrate`."""

    base_s: float = 0.0
    token_s: float = 0.0

    def __call__(self, length: int) -> float:
        return self.base_s + self.token_s * length


FREE = MoveCost()


@dataclass(frozen=True)
class Partition:
    """`token_s`: mean seconds by output token, moves at the cuts included; `even_s`: the same in
    one stage of all instances (which keeps up where any stages do). `requests` [stages]: in flight
    on all its instances."""

    layout: Layout
    token_s: float
    even_s: float
    requests: tuple[float, ...]

    @property
    def gain(self) -> float:
        """By which share it is better than one stage."""
        return 1 - self.token_s / self.even_s if self.even_s > 0 else 0.0


@dataclass(frozen=True)
class StageProblem:
    """`instances` for a `population`, by `qoe`; `move_s(length)` is the price of a request that
    moves at that length, `mixed` the seconds of `Qoe.mixed` (None: as `qoe` has it), `most_stages`
    a limit (None: none).

    As published (`tokens_per_s` 0) the population is the same however it is shared out, and the
    quality of k instances for n requests is k Q^(n / k). But requests come at a rate: in a slow
    stage they stay longer, so that more are there, and one that is planned for too few is
    overloaded (*ours*). With `tokens_per_s`, output tokens a second of all, the population says
    only how they spread over lengths; a stage through which R tokens a second go holds n = R Q(n /
    k) requests (Little), and its quality is that n: R times the seconds by output token.

    ValueError: no instance, no stage allowed, or a negative rate.
    """

    population: Population
    instances: int
    qoe: Qoe
    move_s: Callable[[int], float] = FREE
    mixed: float | None = None
    most_stages: int | None = None
    tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.instances < 1:
            raise ValueError(f"stages need at least one instance, not {self.instances}")
        if self.most_stages is not None and self.most_stages < 1:
            raise ValueError(f"at least one stage must be allowed, not {self.most_stages}")
        if self.tokens_per_s < 0:
            raise ValueError(f"tokens_per_s must not be negative, but is {self.tokens_per_s}")

    @property
    def stages(self) -> int:
        """As many as there may be."""
        some = int((self.population.requests > 0).sum())
        return max(1, min(self.instances, some, self.most_stages or some))

    @property
    def _share(self) -> float:
        """Output tokens a second for each request of the population: at a rate; 1: as it is."""
        return self.tokens_per_s / self.population.in_flight if self.tokens_per_s else 1.0

    @cached_property
    def cost(self) -> np.ndarray:
        """[instances + 1, K + 1, K + 1]: quality of k instances for the buckets from a up to
        before b. Infinite for k = 0 and for a range that holds nobody; of one that cannot keep up
        from NEVER on."""
        import numpy as np

        cost = np.full((self.instances + 1, *self._people.shape), inf)
        there = self._people > 0
        found = self._at_a_rate() if self.tokens_per_s else self._as_it_is()
        cost[1:] = np.where(there, found, inf)
        return cost

    def _as_it_is(self) -> np.ndarray:
        import numpy as np

        qoe, k = self._qoe, self._counts
        n, slope, kv = self._people, self._slope, self._kv
        mixed = np.minimum(qoe.mixed * self._above, qoe.mixed_most * kv * n / k)
        quality: np.ndarray = n * (qoe.coefficients[0] + slope * n / k + mixed)
        return quality

    def _at_a_rate(self) -> np.ndarray:
        """n of n = R (D_0 + slope n / k + min(mixed, most n / k)): the lesser of what either of the
        two in the minimum would make it."""
        import numpy as np

        qoe, k = self._qoe, self._counts
        rate = self._people * self._share

        def held(constant: np.ndarray | float, slope: np.ndarray) -> np.ndarray:
            left = 1 - rate * slope / k
            with np.errstate(divide="ignore", invalid="ignore"):
                result: np.ndarray = np.where(left > 0, rate * constant / left, NEVER * (1 - left))
                return result

        first = qoe.coefficients[0]
        plain = held(first + qoe.mixed * self._above, self._slope)
        most = held(first, self._slope + qoe.mixed_most * self._kv)
        quality: np.ndarray = np.minimum(plain, most)
        return quality

    @property
    def _qoe(self) -> Qoe:
        return self.qoe if self.mixed is None else self.qoe.with_mixed(self.mixed)

    @property
    def _counts(self) -> np.ndarray:
        """[instances, 1, 1]."""
        import numpy as np

        return np.arange(1, self.instances + 1, dtype=np.float64)[:, None, None]

    @cached_property
    def _people(self) -> np.ndarray:
        """[K + 1, K + 1]: requests of the population from a up to before b."""
        return _ranges(self.population.requests)

    @cached_property
    def _slope(self) -> np.ndarray:
        """[K + 1, K + 1]: what a request of the range adds to Q in the mean, without `mixed`."""
        population, d = self.population, self._qoe.coefficients
        columns = (population.requests, population.prompt, population.prompt_squares, population.kv)
        return self._each(
            sum(x * _ranges(column) for x, column in zip(d[1:], columns, strict=True))
        )

    @cached_property
    def _kv(self) -> np.ndarray:
        """[K + 1, K + 1]: of that the part of its KV tokens (attention)."""
        return self._each(self._qoe.coefficients[4] * _ranges(self.population.kv))

    @cached_property
    def _above(self) -> np.ndarray:
        """[K + 1, K + 1]: KV tokens of the longest request of a range, less the mean."""
        import numpy as np

        size = len(self.population.bounds) + 1
        longest = np.zeros((size, size))
        for low in range(size - 1):
            longest[low, low + 1 :] = np.maximum.accumulate(self.population.longest[low:])
        above: np.ndarray = np.maximum(longest - self._each(_ranges(self.population.kv)), 0.0)
        return above

    def _each(self, sums: np.ndarray | int) -> np.ndarray:
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self._people > 0, sums / self._people, 0.0)

    @cached_property
    def cut(self) -> np.ndarray:
        """[K + 1]: price of the moves at a cut before bucket a, in the unit of `cost`; 0 at the
        ends."""
        import numpy as np

        crossing, bounds = self.population.crossing * self._share, self.population.bounds
        prices = [c * self.move_s(bound) for c, bound in zip(crossing, bounds, strict=True)]
        return np.asarray([0.0, *prices[:-1], 0.0])

    def quality(self, cuts: list[int], replicas: list[int]) -> float:
        """Of stages that end before these buckets, the last one at the end."""
        edges = zip([0, *cuts[:-1]], cuts, strict=True)
        found = sum(float(self.cost[k, a, b]) for k, (a, b) in zip(replicas, edges, strict=True))
        return found + sum(float(self.cut[b]) for b in cuts)

    def quality_of(self, layout: Layout) -> float:
        """Of these stages, their bounds at the buckets' that are nearest. A stage that holds nobody
        costs nothing."""
        cuts = [self._bucket_of(bound) for bound in layout.bounds]
        edges = pairwise([0, *cuts, self._last])
        found = sum(
            float(self.cost[stage.replicas, a, b])
            for stage, (a, b) in zip(layout.stages, edges, strict=True)
            if a < b and self._people[a, b] > 0
        )
        return found + sum(float(self.cut[b]) for b in set(cuts))

    def _bucket_of(self, bound: int) -> int:
        """Before which bucket a stage up to this length ends."""
        import numpy as np

        bounds = np.log2(np.asarray(self.population.bounds, dtype=np.float64))
        return int(np.abs(bounds - np.log2(bound)).argmin()) + 1

    def partition(self, cuts: list[int], replicas: list[int]) -> Partition:
        """Of the same stages. ValueError: they cannot keep up."""
        quality, even = self.quality(cuts, replicas), self.quality([self._last], [self.instances])
        if quality >= NEVER:
            most = self.instances / float(self._slope[0, -1])
            raise ValueError(
                f"by its QoE model {self.instances} instances cannot keep up with "
                f"{self.tokens_per_s:,.0f} output tokens/s of these lengths, however they are "
                f"shared out: they must be fewer than {most:,.0f}. Plan for less, or for a number "
                "of requests in flight"
            )
        bounds = [self.population.bounds[b - 1] for b in cuts[:-1]]
        weight = self.tokens_per_s or self.population.in_flight
        edges = list(zip([0, *cuts[:-1]], cuts, strict=True))
        source = self._people if not self.tokens_per_s else None
        return Partition(
            Layout.of(zip([*bounds, None], replicas, strict=True)),
            quality / weight,
            even / weight,
            tuple(
                float(self.cost[k, a, b] if source is None else source[a, b])
                for k, (a, b) in zip(replicas, edges, strict=True)
            ),
        )

    @property
    def _last(self) -> int:
        return len(self.population.bounds)


def _ranges(column: np.ndarray) -> np.ndarray:
    """[K + 1, K + 1]: sums of a column [K] from a up to before b; 0 where b <= a."""
    import numpy as np

    before = np.concatenate([[0.0], np.cumsum(column)])
    sums: np.ndarray = np.triu(before[None, :] - before[:, None], 1)
    return sums
