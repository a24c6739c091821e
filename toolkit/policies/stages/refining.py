"""Bounds between stages that follow the lengths that are live."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.qoe import Qoe, Sums

LEAST = 5
"""Fewer requests move no bound."""

Batch = Sequence[tuple[int, int]]
"""(prompt, KV tokens) of each request of an instance."""


def mean_batch(batches: Sequence[Batch]) -> list[tuple[int, int]]:
    """What one of some instances holds in the mean: of all their requests by length every k-th,
    from the k/2-th on, for k instances (CascadeInfer, section 4.2, note 1)."""
    union = sorted((each for batch in batches for each in batch), key=_length)
    return union[len(batches) // 2 :: len(batches)]


def best_split(batch: Batch, qoe: Qoe) -> int:
    """The length at which the second part begins when a batch is shared out best between two:
    R[b], b = argmin over i of Q(R[:i]) + Q(R[i:]), R by length. Of equal ones the one with the most
    even parts. ValueError: nobody."""
    if not batch:
        raise ValueError("nobody to share out between two stages")
    ordered = sorted(batch, key=_length)
    before = _prefixes(ordered)
    total = before[-1]

    def quality(i: int) -> float:
        left = before[i]
        right = Sums(
            total.requests - left.requests,
            total.prompt - left.prompt,
            total.prompt_squares - left.prompt_squares,
            total.kv - left.kv,
            total.longest,
        )
        return qoe.batch_s(left) + qoe.batch_s(right)

    best = min(range(len(ordered)), key=lambda i: (quality(i), abs(2 * i - len(ordered))))
    return ordered[best][1]


class Refiner:
    """`refine(batches) -> Layout`, once an interval.

    For every instance of a stage: its own requests and the mean ones of the next stage's instances
    are shared out best between two (`best_split`); the stage's bound is to end there, in the mean
    of its instances, and moves a `weight` of the way. An instance where own and mean ones together
    are fewer than LEAST says nothing; where none says anything the bound is frozen. Bounds stay in
    their order, one token apart at least.

    State: bounds as fractions. Source: CascadeInfer, section 4.3; there each instance has a bound
    of its own, here their mean is the stage's, so that a request's stage is one.
    """

    def __init__(self, layout: Layout, qoe: Qoe, weight: float = 0.3) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"weight must lie in (0, 1], not {weight}")
        self.layout = layout
        self._qoe = qoe
        self._weight = weight
        self._bounds = [float(bound) for bound in layout.bounds]

    def refine(self, batches: Sequence[Sequence[Batch]]) -> Layout:
        """`batches` [stages][instances of it that are up]. ValueError: another number of stages."""
        if len(batches) != len(self.layout.stages):
            count = len(self.layout.stages)
            raise ValueError(f"batches of {len(batches)} stages; the layout has {count}")
        for place, (own, after) in enumerate(pairwise(batches)):
            found = self._wanted(own, after)
            if found is not None:
                bound = self._bounds[place]
                self._bounds[place] = bound + self._weight * (found - bound)
        self._keep_order()
        self.layout = self.layout.bounded([round(bound) for bound in self._bounds])
        return self.layout

    def _wanted(self, own: Sequence[Batch], after: Sequence[Batch]) -> float | None:
        successor = mean_batch(after) if after else []
        merged = [[*batch, *successor] for batch in own]
        found = [best_split(both, self._qoe) - 1 for both in merged if len(both) >= LEAST]
        return sum(found) / len(found) if found else None

    def _keep_order(self) -> None:
        least = 1.0
        for place, bound in enumerate(self._bounds):
            self._bounds[place] = max(bound, least)
            least = round(self._bounds[place]) + 1.0


def _length(request: tuple[int, int]) -> int:
    return request[1]


def _prefixes(ordered: Batch) -> list[Sums]:
    """Sums of the first 0, 1, .. of them, by length."""

    def add(sums: Sums, request: tuple[int, int]) -> Sums:
        prompt, length = request
        return Sums(
            sums.requests + 1,
            sums.prompt + prompt,
            sums.prompt_squares + prompt * prompt,
            sums.kv + length,
            length,
        )

    return list(accumulate(ordered, add, initial=Sums(0, 0, 0, 0, 0)))
