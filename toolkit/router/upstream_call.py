"""An upstream call of an attempt, and the load that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.decide.reservation import Reservation
from toolkit.router.upstream import Call
from toolkit.router.worker import Rank

if TYPE_CHECKING:
    from toolkit.router.attempt.early import Early
    from toolkit.router.failure import Failure

RID_BYTES = 16


@dataclass(slots=True)
class UpstreamCall:
    """A call and the load that it stands for."""

    rank: Rank
    call: Call
    reservation: Reservation
    decode: bool
    """Whether its answer is the client's: of a decode or plain worker, or of a prefill worker that
    does it all."""
    begun: float
    """When it was posted."""
    proving: bool = False
    """It has had a token, which is not enough for the request that it runs."""
    rid: str = ""
    """What its worker calls it."""
    brought: int = 0
    """Output tokens that came with it."""
    early: Early | None = None
    """Reads it, where it is a prefill's stream."""
    failure: Failure | None = None
    """What the worker said instead of an answer, in one of status 200."""

    @property
    def status(self) -> int:
        """What the worker answered, or said within its answer to be the answer."""
        failure = self.failure
        if failure is None and self.early is not None:
            failure = self.early.failure
        return self.call.status if failure is None else failure.status


@dataclass(frozen=True, slots=True)
class Apart:
    """An upstream call beside that which gives the client's answer: what its worker calls it, how
    many tokens it brings along, and who reads it."""

    rid: str
    brought: int
    sink: Callable[[bytes], None]


def set_rank(body: dict[str, Any], rank: Rank) -> None:
    """Name the DP rank, where the worker has several."""
    if rank.worker.config.dp_size > 1:
        body["routed_dp_rank"] = rank.dp_rank
