"""Decode ranks of prefill and decode apart: places for KV that comes from a prefill worker."""

from collections.abc import Callable, Sequence

from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.events import Events
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.movable import Movable
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request
from toolkit.simulate.scheduling import Scheduling


class Group(Movable):
    """Decode ranks that take every step together (DP attention), or one rank."""

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        ranks: Sequence[SimulatedRank],
        scheduling: Scheduling,
        experts: SimulatedExperts | None,
        on_place: Callable[[SimulatedRank, Request], None],
        on_first: Callable[[SimulatedRank, Request], None],
        on_end: Callable[[SimulatedRank, Request], None],
        neighbours: Neighbours | None = None,
    ) -> None:
        """`on_place`: a request has its place, its KV may be sent. The others: see `Loop`."""
        super().__init__(events, cost, ranks, scheduling, experts, on_first, on_end, neighbours)
        self._on_place = on_place
        self._joined = 0
        """Since the last step began."""

    def arrive(self, rank: SimulatedRank, request: Request) -> None:
        """A request was bound to one of the ranks. Its scheduler knows of it at a boundary, or at
        once."""
        rank.arriving.append(request)
        if self.scheduling.early:
            self._give_places(rank)
        self.at_boundary(self._give_places, rank)

    def received(self, rank: SimulatedRank, request: Request) -> None:
        """Its KV is there."""
        self.at_boundary(self._join, rank, request, steps=self.scheduling.join)

    def _give_places(self, rank: SimulatedRank) -> None:
        """To those who arrived, in order, while there is a slot and room for the next one."""
        while rank.arriving:
            request = rank.arriving[0]
            if not self._has_room(rank, request.prompt):
                return
            rank.arriving.popleft()
            rank.coming += 1
            self.coming[rank.place] += request.prompt
            self._on_place(rank, request)

    def _has_room(self, rank: SimulatedRank, tokens: int) -> bool:
        running = len(rank.running)
        if running + rank.coming >= rank.slots or rank.retracted:
            return False
        if not running and not rank.coming:
            return True
        reserved = rank.reserve * (running + rank.coming + 1)
        return tokens + reserved <= self._room(rank)

    def _join(self, rank: SimulatedRank, request: Request) -> None:
        rank.coming -= 1
        self.coming[rank.place] -= request.prompt
        self._enter(rank, request, 1)
        self._joined += 1
        self._on_first(rank, request)

    def _once_s(self) -> float:
        count, self._joined = self._joined, 0
        return self.cost.join_s(count) if count else 0.0

    def _freed(self, rank: SimulatedRank) -> None:
        """Who was retracted comes back first, then who arrived gets a place."""
        while rank.retracted:
            request = rank.retracted[0]
            tokens = request.prompt + request.generated
            running = len(rank.running)
            if running and self._room(rank) < tokens + rank.reserve * (running + 1):
                return
            rank.retracted.popleft()
            self._enter(rank, request, request.generated)
        self._give_places(rank)

    def _retracted(self, rank: SimulatedRank, request: Request) -> None:
        rank.retracted.append(request)
