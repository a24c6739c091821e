"""A loop whose requests may move to another rank, and which takes in those that move."""

from collections.abc import Callable
from typing import Any

from toolkit.simulate.loop import Loop
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request


class Movable(Loop):
    """What a loop does of a move (`toolkit.simulate.moves`): keep a place for who comes (`expect`),
    let a request go (`take_out`), take one in with its KV (`put_in`), and say when it goes on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        import numpy as np

        self.expected: np.ndarray = np.zeros(len(self.ranks), dtype=np.int64)
        """KV tokens of `coming` for which a place is kept for those that move here."""
        self._awaited: dict[Request, tuple[int, Callable[[], None]]] = {}
        """Who moves here, the tokens that it had said, whom to tell that it has said one more."""

    def has_place(self, rank: SimulatedRank) -> bool:
        """Whether one more may come: several routers may have chosen the same last place."""
        return len(rank.running) + rank.coming < rank.slots

    def expect(self, rank: SimulatedRank, tokens: int) -> None:
        """Keep a place of so many KV tokens for a request that moves here."""
        self._keep(rank, 1, tokens)
        self.at_boundary(_look_around)  # the steps that were planned counted on this room

    def release(self, rank: SimulatedRank, tokens: int) -> None:
        """It does not come; not to be called within a boundary."""
        self._keep(rank, -1, -tokens)
        self.at_boundary(self._freed, rank)

    def length_of(self, request: Request) -> int:
        """Prompt and answer so far of one that runs here, in tokens."""
        return request.prompt + self.said(request)

    def said(self, request: Request) -> int:
        """Tokens of its answer that one which runs here has, now."""
        return request.generated + self.said_in(self.steps + self.taken() - request.joined)

    def take_out(self, rank: SimulatedRank, request: Request) -> bool:
        """At a boundary: it leaves the batch, to go on elsewhere. False: it is not in the batch any
        more, or has said everything."""
        if request not in rank.running or self.said(request) >= request.output:
            return False
        said = self.said(request)
        self._leave(rank, request)
        request.generated = said
        self._forget(request)
        self._freed(rank)
        return True

    def put_in(self, rank: SimulatedRank, request: Request, tokens: int) -> None:
        """Its KV is here, in the place that was kept for it."""
        self.at_boundary(self._take_place, rank, request, tokens, steps=self.scheduling.join)

    def tell_back(self, request: Request, goes_on: Callable[[], None]) -> None:
        """Call it when the request, which was taken out elsewhere, has said one more token here."""
        self._awaited[request] = request.generated, goes_on

    def _keep(self, rank: SimulatedRank, requests: int, tokens: int) -> None:
        rank.coming += requests
        self.coming[rank.place] += tokens
        self.expected[rank.place] += tokens

    def _take_place(self, rank: SimulatedRank, request: Request, tokens: int) -> None:
        self._keep(rank, -1, -tokens)
        self._moved_in(rank, request)

    def _moved_in(self, rank: SimulatedRank, request: Request) -> None:
        self._enter(rank, request, request.generated)

    def _enter(self, rank: SimulatedRank, request: Request, generated: int) -> None:
        super()._enter(rank, request, generated)
        if self._awaited and request in self._awaited:
            before, goes_on = self._awaited.pop(request)
            # Prefilled again it has its next token by that, else by its next step.
            due = self.steps + (generated == before)
            self._agenda.append((due, self._goes_on, (rank, request, before, goes_on)))

    def _goes_on(
        self, rank: SimulatedRank, request: Request, before: int, goes_on: Callable[[], None]
    ) -> None:
        if request in rank.running and self.said(request) == before:
            # A prefill pass went first.
            self._agenda.append((self.steps + 1, self._goes_on, (rank, request, before, goes_on)))
        else:
            goes_on()


def _look_around() -> None:
    """Nothing: the boundary is what is wanted."""
