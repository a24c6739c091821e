"""What a move is, how it can end, and what a kind of move must be able to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from toolkit.contract.events import Moving
    from toolkit.decide.reservation import Reservation
    from toolkit.router.moves.live import Live
    from toolkit.router.relay import Relay
    from toolkit.router.worker import Rank

How = Literal["moved", "kept", "ended", "lost"]
Why = Literal["outgrown", "overload", "level", "drain", "asked", "kv_limit"]
"""Who wanted it: a stage's range, a stage's load, rebalancing, a worker that is to be empty, an
operator, a decode worker near its KV limit."""
WHYS: tuple[Why, ...] = ("outgrown", "overload", "level", "drain", "asked", "kv_limit")


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """How a move ended.

    - `moved`: the stream goes on at `to`
    - `kept`: it stays where it was, `reason` says why
    - `ended`: it came to its end before it could be moved
    - `lost`: its client got an error in place of the rest, `reason`

    `other_kind`: of one that is kept: it is the source that cannot, so another kind of move may do
    it; where the target is at fault none can.
    `stall_s`: from the last event that the client had of the source to the first one after it.
    `tokens`: of KV that the target had to get.
    """

    how: How
    reason: str = ""
    to: str = ""
    stall_s: float = 0.0
    tokens: int = 0
    kind: str = ""
    other_kind: bool = False
    cause: str = ""
    """Of one that is kept, in a word: a state of `toolkit.contract.events.Moving`, or whose fault
    it was (`source`, `target`, `time`). Empty where it had not begun."""
    copied: Moving | None = None
    """Of a direct move: what the source measured."""


class GoOn(Exception):
    """This attempt has been left: the next one goes on with what the client has. No failure."""


@dataclass(eq=False, slots=True)
class Move:
    """One order. `reservation`: its place on the target, until that is posted. `done` ends with the
    Outcome, in any case."""

    live: Live
    source: Rank
    target: Rank
    why: Why
    kind: Kind
    tokens: int
    reservation: Reservation | None
    done: asyncio.Future[MoveOutcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    begun: float = field(default_factory=monotonic)
    run: bool = False
    """Its kind has been at work."""
    left: bool = False
    """The source's part is over."""
    stalled_at: float = 0.0
    """When the client had the source's last event."""
    copied: Moving | None = None
    """What the source said of its KV last."""

    def leave(self, relay: Relay) -> None:
        """The source's part is over; whoever goes on ends the stall."""
        self.left = True
        self.stalled_at = relay.sent_at
        relay.on_event = self.live.gone_on

    def end(
        self,
        how: How,
        reason: str = "",
        to: str = "",
        stall_s: float = 0.0,
        other_kind: bool = False,
        cause: str = "",
    ) -> None:
        """Once; what comes later does not count."""
        self.drop_reservation()
        if not self.done.done():
            tokens = self.tokens if how == "moved" else 0
            name, copied = self.kind.name, self.copied
            self.done.set_result(
                MoveOutcome(how, reason, to, stall_s, tokens, name, other_kind, cause, copied)
            )

    def take_reservation(self) -> Reservation | None:
        """The place on the target, which is the caller's from now on. None: there is none, or its
        rank takes nothing now."""
        reservation = self.reservation
        if reservation is None:
            return None
        if not reservation.rank.open:
            self.drop_reservation()
            return None
        self.reservation = None
        return reservation

    def drop_reservation(self) -> None:
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            self.live.channel.channel.give_back(reservation)


class Kind(Protocol):
    """A way to move a request. It runs in the request's own task, between two events of its stream.

    `run` returns when the request stays where it is or has ended there (`relay.ended`), or when it
    has been taken over within the attempt: then it has put the new upstream call into
    `move.live.upstream_call`. It raises GoOn to have the next attempt run it again, at the booked
    rank, with what the client has. Whatever it raises else is the attempt's failure, and the
    ordinary retry takes the request.
    """

    name: str

    def why_not(self, live: Live, target: Rank) -> str | None:
        """What of this request, or of these workers, this kind cannot do; None when it can."""
        ...

    async def run(self, move: Move) -> None: ...


Tell = Callable[[Move, MoveOutcome], None]
