"""What a group's experts make its steps take, kept as its requests come and go."""

from toolkit.simulate.costs.links import Links
from toolkit.simulate.crossing import crossing_of
from toolkit.simulate.experts import Mixture, SimulatedExperts


class ExpertTime:
    """Of a group of `ranks`. `distinct`: experts that its steps load; `busiest`: those that a layer
    waits for; seconds of each step: `crossing_s` of its all-to-all, `moving_s` in which experts are
    moved.

    Where placements age (`SimulatedExperts.aged`), figures are means over the time.
    """

    def __init__(self, experts: SimulatedExperts, links: Links | None, ranks: int) -> None:
        aging = experts.aging
        self.distinct = self.busiest = self.crossing_s = 0.0
        self.moving_s = 0.0 if aging is None else aging.step_s
        shares = [(experts, 1.0)]
        if aging is not None:
            shares = [(experts, aging.fresh), (aging.old, 1 - aging.fresh)]
        self._parts = [
            (share, Mixture(each), each.gpus > 1, crossing_of(each, links, ranks))
            for each, share in shares
            if share
        ]

    def add(self, rank: int, row: int) -> None:
        for _, mixture, _, crossing in self._parts:
            mixture.add(row)
            if crossing is not None:
                crossing.add(rank, row)

    def remove(self, rank: int, row: int) -> None:
        for _, mixture, _, crossing in self._parts:
            mixture.remove(row)
            if crossing is not None:
                crossing.remove(rank, row)

    def look(self) -> None:
        """Bring the figures up to date."""
        self.distinct = self.busiest = self.crossing_s = 0.0
        for share, mixture, spread, crossing in self._parts:
            distinct = mixture.distinct()
            self.distinct += share * distinct
            self.busiest += share * (mixture.busiest() if spread else distinct)
            if crossing is not None:
                self.crossing_s += share * crossing.seconds()
