"""What a move is, and how it can end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.contract.events import Moving
    from toolkit.decide.messages import MoveHow
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.stages.running import Why
    from toolkit.router.decider_channel import DeciderChannel
    from toolkit.router.worker import Rank


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

    how: MoveHow
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
    """One order. `reservation`: its place on the target, until that is posted, and `room`: KV
    tokens that are free there beside it. `done` ends with the Outcome, in any case."""

    source: Rank
    target: Rank
    why: Why
    kind: str
    """The name of its kind."""
    tokens: int
    reservation: Reservation | None
    channel: DeciderChannel
    """Where it goes back."""
    room: float
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

    def end(
        self,
        how: MoveHow,
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
            kind, copied = self.kind, self.copied
            self.done.set_result(
                MoveOutcome(how, reason, to, stall_s, tokens, kind, other_kind, cause, copied)
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
            self.channel.give_back(reservation)
