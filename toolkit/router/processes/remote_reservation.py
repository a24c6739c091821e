"""A reservation of the decider process, as a relay has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.router.worker import Rank


class RemoteReservation:
    """Stands for a `Reservation` in the messages of a relay. `call`: its number; `answers`: whether
    its answer is the client's; `counts` and `followed`: as there."""

    __slots__ = ("answers", "call", "counts", "followed", "over", "proven", "rank")

    def __init__(
        self,
        call: int,
        rank: Rank,
        answers: bool,
        counts: bool = False,
        followed: bool = False,
    ) -> None:
        self.call = call
        self.rank = rank
        self.answers = answers
        self.counts = counts
        self.followed = followed
        self.proven = False
        self.over = False
