"""What requests need of the way to the decider, which may be in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from toolkit.decide import messages as m
    from toolkit.decide.reservation import Reservation
    from toolkit.router.errors import ApiError
    from toolkit.router.prefill_facts import PrefillFacts


class Suspicion(NamedTuple):
    """What a request has seen workers do (`toolkit.decide.poison.Record`): whether it is suspected
    to fail them, and whether a token is no proof that it does not."""

    suspect: bool = False
    lingering: bool = False


class TakesCalls(Protocol):
    """An attempt of a request: who calls the workers that the decider names. `rid`: what these
    call it, `sampled`: whether its experts count for the drift of traffic."""

    facts: PrefillFacts

    @property
    def rid(self) -> str: ...
    @property
    def sampled(self) -> bool: ...
    def prefill(self, order: m.PrefillOrder) -> None: ...
    def decode(self, order: m.DecodeOrder) -> None: ...


class TakesOrders(Protocol):
    """A request of the router."""

    def take(self, order: m.RequestOrder) -> None: ...


class Attempting(TakesOrders, Protocol):
    """A request that runs in attempts; `attempt`: the present one."""

    @property
    def attempt(self) -> TakesCalls | None: ...


class TellsDecider(Protocol):
    """Whoever takes messages for the decider."""

    def send(self, message: m.Message, now: float | None = None) -> None:
        """Tell the decider. `now`: when it happened, if not just now."""
        ...


class DeciderChannel(TellsDecider, Protocol):
    """What a request asks, beside what it tells."""

    @property
    def quarantines(self) -> bool:
        """Whether requests must come with a digest."""
        ...

    @property
    def refusal(self) -> ApiError | None:
        """Why no new request can be decided now; None: it can."""
        ...

    def join(self, request: Attempting) -> int:
        """A number for a request, under which it gets orders until `leave`."""
        ...

    def leave(self, number: int) -> None:
        """The request takes no orders any more."""
        ...

    def suspicion(self, number: int) -> Suspicion:
        """Of a request; none before it runs and when it is over."""
        ...

    def counter(self, reservation: Reservation) -> Callable[[int], None] | None:
        """What is to be called with the number of tokens that came; None where nobody wants to
        know."""
        ...

    def give_back(self, reservation: Reservation) -> None:
        """It was not used."""
        ...

    def beside(self, number: int, rid: str, worker: str) -> None:
        """The request also runs on this worker, which calls it `rid`: it moves there."""
        ...
