"""Which lengths and how many instances each stage gets: CascadeInfer's partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from toolkit.policies.stages.crowd import Crowd
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.qoe import Qoe

if TYPE_CHECKING:
    import numpy as np

SLACK = 1e-12
"""Of the quality: gains below it are rounding."""


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
    """`quality`: of the whole, seconds by output token summed over all requests in flight, moves at
    the cuts included. `even`: the same of one stage of all instances."""

    layout: Layout
    quality: float
    even: float

    @property
    def gain(self) -> float:
        """By which share it is better than one stage."""
        return 1 - self.quality / self.even if self.even > 0 else 0.0


@dataclass(frozen=True)
class Problem:
    """`instances` for a `crowd`, by `qoe`; `move_s(length)` is the price of a request that moves at
    that length, `mixed` the seconds of `Qoe.mixed` (None: as `qoe` has it), `most_stages` a limit
    (None: none). ValueError: no instance, or no stage allowed."""

    crowd: Crowd
    instances: int
    qoe: Qoe
    move_s: Callable[[int], float] = FREE
    mixed: float | None = None
    most_stages: int | None = None

    def __post_init__(self) -> None:
        if self.instances < 1:
            raise ValueError(f"stages need at least one instance, not {self.instances}")
        if self.most_stages is not None and self.most_stages < 1:
            raise ValueError(f"at least one stage must be allowed, not {self.most_stages}")

    @property
    def stages(self) -> int:
        """As many as there may be."""
        some = int((self.crowd.requests > 0).sum())
        return max(1, min(self.instances, some, self.most_stages or some))

    @cached_property
    def cost(self) -> np.ndarray:
        """[instances + 1, K + 1, K + 1]: quality of k instances for the buckets from a up to
        before b, k Q^(n / k). Infinite for k = 0, and for a range that holds nobody."""
        import numpy as np

        qoe = self.qoe if self.mixed is None else self.qoe.with_mixed(self.mixed)
        crowd = self.crowd
        d = qoe.coefficients
        n, prompt, squares, kv = (
            _ranges(column)
            for column in (crowd.requests, crowd.prompt, crowd.prompt_squares, crowd.kv)
        )
        size = len(crowd.bounds) + 1
        longest = np.zeros((size, size))
        for low in range(size - 1):
            longest[low, low + 1 :] = np.maximum.accumulate(crowd.longest[low:])
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.where(n > 0, np.maximum(longest - kv / n, 0.0), 0.0)
        k = np.arange(1, self.instances + 1, dtype=np.float64)[:, None, None]
        shared = d[1] * n + d[2] * prompt + d[3] * squares + d[4] * kv
        mixed = np.minimum(qoe.mixed * above, qoe.mixed_most * d[4] * kv / k)
        cost = np.full((self.instances + 1, size, size), inf)
        cost[1:] = np.where(n > 0, n * (d[0] + shared / k + mixed), inf)
        return cost

    @cached_property
    def cut(self) -> np.ndarray:
        """[K + 1]: price of the moves in a decode step at a cut before bucket a; 0 at the ends."""
        import numpy as np

        crossing, bounds = self.crowd.crossing, self.crowd.bounds
        prices = [c * self.move_s(bound) for c, bound in zip(crossing, bounds, strict=True)]
        return np.asarray([0.0, *prices[:-1], 0.0])

    def partition(self, cuts: list[int], replicas: list[int]) -> Partition:
        """The stages that end before these buckets, the last one at the end."""
        edges = list(zip([0, *cuts[:-1]], cuts, strict=True))
        quality = sum(float(self.cost[k, a, b]) for k, (a, b) in zip(replicas, edges, strict=True))
        quality += sum(float(self.cut[b]) for b in cuts)
        bounds = [self.crowd.bounds[b - 1] for b in cuts[:-1]]
        layout = Layout.of(zip([*bounds, None], replicas, strict=True))
        return Partition(layout, quality, float(self.cost[self.instances, 0, -1]))


def _ranges(column: np.ndarray) -> np.ndarray:
    """[K + 1, K + 1]: sums of a column [K] from a up to before b; 0 where b <= a."""
    import numpy as np

    before = np.concatenate([[0.0], np.cumsum(column)])
    sums: np.ndarray = np.triu(before[None, :] - before[:, None], 1)
    return sums


def exact(problem: Problem) -> Partition:
    """The best partition at the buckets' bounds:

        f[s, e, l] = min over e', l' of f[s - 1, e', l'] + (e - e') Q^(n(l', l) / (e - e')) + c(l')

    Of equally good ones that with the fewest stages. O(stages x instances^2 x K^2). Source:
    CascadeInfer, section 4.2.
    """
    import numpy as np

    cost, cut = problem.cost, problem.cut
    size, most = cost.shape[1], problem.instances
    f = np.full((most + 1, size), inf)
    f[0, 0] = 0.0
    layers, came = [f], [np.zeros((most + 1, size, 2), dtype=np.int64)]
    for _ in range(problem.stages):
        after = np.full((most + 1, size), inf)
        back = np.zeros((most + 1, size, 2), dtype=np.int64)
        start = layers[-1] + cut
        for e in range(1, most + 1):
            ways = start[:e, :, None] + cost[e:0:-1]  # [e', l', l]
            flat = ways.reshape(-1, size)
            best = flat.argmin(axis=0)
            after[e] = flat[best, np.arange(size)]
            back[e] = np.stack(np.divmod(best, size), axis=1)
        layers.append(after)
        came.append(back)
    ends = [float(layer[most, -1]) for layer in layers]
    stages = next(s for s, end in enumerate(ends) if end <= min(ends) * (1 + SLACK))
    cuts, replicas = [], []
    e, b = most, size - 1
    for stage in range(stages, 0, -1):
        before, a = (int(x) for x in came[stage][e, b])
        cuts.append(b)
        replicas.append(e - before)
        e, b = before, a
    return problem.partition(cuts[::-1], replicas[::-1])


def heuristic(problem: Problem, shifts: bool = True) -> Partition:
    """The same in two phases: stages of one instance each, best cut by a dynamic program over
    lengths alone; then the pair of neighbours whose union gains most is merged, as long as one
    gains or there are too many.

    Where there are fewer filled buckets than instances, the first phase has as many stages as
    buckets, and gives each instance that is left to whom it helps most. Before the merges and after
    each, single instances go over to a neighbouring stage, and cuts to the next bucket, as long as
    that gains (*ours*, without `shifts` as published: the first phase has to share out evenly, and
    merges alone cannot undo that).
    Source: CascadeInfer, section 4.2.
    """
    cuts = _single(problem)
    replicas = [1] * len(cuts)
    for _ in range(problem.instances - len(cuts)):
        _give(problem, cuts, replicas)
    if shifts:
        _shift(problem, cuts, replicas)
    _merge(problem, cuts, replicas, shifts)
    return problem.partition(cuts, replicas)


def _single(problem: Problem) -> list[int]:
    """The first phase: where stages of one instance each end."""
    import numpy as np

    filled = int((problem.crowd.requests > 0).sum())
    stages = min(problem.instances, filled)
    one, cut = problem.cost[1], problem.cut
    f = np.full(one.shape[0], inf)
    f[0] = 0.0
    came = []
    for _ in range(stages):
        ways = (f + cut)[:, None] + one
        came.append(ways.argmin(axis=0))
        f = ways.min(axis=0)
    cuts = [one.shape[0] - 1]
    for back in reversed(came[1:]):
        cuts.append(int(back[cuts[-1]]))
    return cuts[::-1]


def _edges(cuts: list[int], stage: int) -> tuple[int, int]:
    return (cuts[stage - 1] if stage else 0), cuts[stage]


def _give(problem: Problem, cuts: list[int], replicas: list[int]) -> None:
    """One more instance to the stage that it helps most."""

    def gain(stage: int) -> float:
        a, b = _edges(cuts, stage)
        k = replicas[stage]
        return float(problem.cost[k, a, b] - problem.cost[k + 1, a, b])

    replicas[max(range(len(cuts)), key=gain)] += 1


def _merge(problem: Problem, cuts: list[int], replicas: list[int], shifts: bool) -> None:
    """Neighbours into one, as long as that gains or there are more stages than may be."""
    cost = problem.cost

    def gain(stage: int) -> float:
        """Of a stage's union with the next one."""
        (a, b), (_, c) = _edges(cuts, stage), _edges(cuts, stage + 1)
        k, m = replicas[stage], replicas[stage + 1]
        return float(cost[k, a, b] + problem.cut[b] + cost[m, b, c] - cost[k + m, a, c])

    while len(cuts) > 1:
        best = max(range(len(cuts) - 1), key=gain)
        if gain(best) <= 0 and len(cuts) <= problem.stages:
            return
        del cuts[best]
        replicas[best : best + 2] = [replicas[best] + replicas[best + 1]]
        if shifts:
            _shift(problem, cuts, replicas)


def _shift(problem: Problem, cuts: list[int], replicas: list[int]) -> None:
    """Move single instances and cuts between neighbours while that gains."""

    def quality(stage: int, cut: int, k: int, m: int) -> float:
        """Of a stage and the next one, cut there, with k and m instances."""
        a, c = _edges(cuts, stage)[0], cuts[stage + 1]
        if not a < cut < c or k < 1 or m < 1:
            return inf
        cost = problem.cost
        return float(cost[k, a, cut] + problem.cut[cut] + cost[m, cut, c])

    moved = True
    while moved:
        moved = False
        for stage in range(len(cuts) - 1):
            k, m, cut = replicas[stage], replicas[stage + 1], cuts[stage]
            ways = [
                (quality(stage, cut + i, k + j, m - j), i, j)
                for i in (-1, 0, 1)
                for j in (-1, 0, 1)
            ]
            best, i, j = min(ways)
            if best < quality(stage, cut, k, m) * (1 - SLACK):
                cuts[stage], replicas[stage], replicas[stage + 1] = cut + i, k + j, m - j
                moved = True
