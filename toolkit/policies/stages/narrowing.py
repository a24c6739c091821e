"""The stage filter: which ranks a request of a length may go to, whatever policy chooses then."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.policies.stages.layout import Layout


@dataclass
class StageCounters:
    """Decisions by the stage of the request's length: `own` went to it, `widened` to another one,
    as no rank of it was usable."""

    own: Counter[int] = field(default_factory=Counter)
    widened: Counter[int] = field(default_factory=Counter)


class StageFilter:
    """Leaves of the usable ranks those of the length's stage; where none is usable those of the
    nearest stage that has one, of two as near the later one. A rank that is full is usable: its
    requests wait for it, as they would be slow and slow others elsewhere.

    It stands before any policy, so that `composed` reads: stage, locality band, barrier, user.
    `layout` may be changed to one with other bounds, and by `use` to any of as many ranks. Source:
    CascadeInfer, section 3.2; the widening is *ours*.
    """

    def __init__(self, layout: Layout) -> None:
        self.counters = StageCounters()
        self.use(layout)

    def use(self, layout: Layout) -> None:
        """These stages from now on."""
        self.layout = layout
        self.stages = [layout.stage_of_rank(rank) for rank in range(layout.ranks)]
        """Of each rank."""

    def narrow(self, length: int, usable: Sequence[bool]) -> list[bool]:
        """`usable` [ranks], in the layout's order, for a request of so many KV tokens. ValueError:
        another number of ranks than the layout has."""
        if len(usable) != len(self.stages):
            raise ValueError(f"{len(usable)} ranks; the stages have {len(self.stages)}")
        there = {stage for stage, ok in zip(self.stages, usable, strict=True) if ok}
        for stage in self.layout.nearest(self.layout.stage_of(length)):
            if stage in there:
                pairs = zip(self.stages, usable, strict=True)
                return [ok and of == stage for of, ok in pairs]
        return list(usable)

    def note(self, length: int, rank: int) -> None:
        """A request of this length was given to that rank."""
        stage = self.layout.stage_of(length)
        counter = self.counters.own if self.stages[rank] == stage else self.counters.widened
        counter[stage] += 1
