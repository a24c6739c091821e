"""Which lengths and how many instances each stage gets: CascadeInfer's partition."""

from math import inf

from toolkit.policies.stages.problem import FREE, MoveCost, Partition, StageProblem

__all__ = ["FREE", "MoveCost", "Partition", "StageProblem", "exact", "heuristic"]

SLACK = 1e-12
"""Of the quality: gains below it are rounding."""


def exact(problem: StageProblem) -> Partition:
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


def heuristic(problem: StageProblem, shifts: bool = True) -> Partition:
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


def _single(problem: StageProblem) -> list[int]:
    """The first phase: where stages of one instance each end."""
    import numpy as np

    filled = int((problem.population.requests > 0).sum())
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


def _give(problem: StageProblem, cuts: list[int], replicas: list[int]) -> None:
    """One more instance to the stage that it helps most."""

    def gain(stage: int) -> float:
        a, b = _edges(cuts, stage)
        k = replicas[stage]
        return float(problem.cost[k, a, b] - problem.cost[k + 1, a, b])

    replicas[max(range(len(cuts)), key=gain)] += 1


def _merge(problem: StageProblem, cuts: list[int], replicas: list[int], shifts: bool) -> None:
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


def _shift(problem: StageProblem, cuts: list[int], replicas: list[int]) -> None:
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
