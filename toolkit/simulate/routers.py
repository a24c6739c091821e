"""Several routers over the same workers, each of which decides for the requests that came to it."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from toolkit.simulate.worker_states import SimulatedRankState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.simulate.moves import SimulatedMove, SimulatedMoves
    from toolkit.simulate.prefill import PrefillWorker
    from toolkit.simulate.request import Request
    from toolkit.simulate.router import SimulatedRouter


class SimulatedRouters:
    """To workers and clients one router: requests come to each in turn, and what becomes of a
    request its own router is told. What a router knows of the others is in the loads that ranks
    publish: all requests there, whoever sent them."""

    def __init__(self, routers: Sequence[SimulatedRouter]) -> None:
        self.routers = routers
        self._next = cycle(routers)
        self._of: dict[Request, SimulatedRouter] = {}
        self._by_state = {state: each for each in routers for state in each.rank_states}
        for states in zip(*(router.rank_states for router in routers), strict=True):
            for state in states:
                state.ledger.there = states[0].ledger.there

    @property
    def moves(self) -> SimulatedMoves | None:
        """Who moves requests, where some may move."""
        return self.routers[0].moves

    @moves.setter
    def moves(self, moves: SimulatedMoves) -> None:
        for router in self.routers:
            router.moves = moves

    def arrive(self, request: Request) -> None:
        """A client's request is here."""
        self._of[request] = router = next(self._next)
        router.arrive(request)

    def prefilled(self, request: Request) -> None:
        """A prefill worker is done."""
        self._of[request].prefilled(request)

    def began(self, request: Request) -> None:
        """Its first token was made."""
        self._of[request].began(request)

    def prefill_of(self, request: Request) -> PrefillWorker:
        """Where its prompt is computed."""
        return self._of[request].prefill_of(request)

    def ended(self, request: Request) -> None:
        """Its router has relayed its last token."""
        self._of.pop(request).ended(request)

    def moved(self, moving: SimulatedMove, said: int, stall_s: float) -> None:
        """It goes on there, with so many tokens said."""
        self._of[moving.request].moved(moving, said, stall_s)

    def given_up(self, moving: SimulatedMove) -> None:
        """It stays where it is, or has ended: so its router is that which keeps the place."""
        state = moving.place.rank
        assert isinstance(state, SimulatedRankState)
        self._by_state[state].given_up(moving)
