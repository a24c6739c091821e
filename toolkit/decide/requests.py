"""One request as the decider knows it, over all its attempts."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from toolkit.decide.poison import Record

if TYPE_CHECKING:
    from toolkit.decide.messages import Failed, Shape
    from toolkit.decide.pairs import Pair
    from toolkit.decide.ranks import RankState
    from toolkit.decide.reservation import Reservation
    from toolkit.decide.timers import TimerEntry
    from toolkit.policies.base import RequestView


class WaitStep(Enum):
    """What a request waits for."""

    DECODE_THERE = auto()
    """Some decode worker, before its prefill is sent anywhere: else nobody may take the KV."""
    PREFILL = auto()
    DECODE_EARLY = auto()
    """A decode rank, chosen before the prefill has run."""
    PREFILLING = auto()
    LAST_WORD = auto()
    """Of a prefill worker that went away: its connection tells whether the prefill is lost."""
    DECODE = auto()
    """A decode rank, chosen after the prefill."""
    WHOLE = auto()
    """A rank that does all of it."""
    RUNNING = auto()
    PAUSE = auto()
    """Before it is run again."""
    VERDICT = auto()
    """Whether the worker that failed it has died."""
    HOST = auto()
    """The host's next word."""


class Wait(NamedTuple):
    """The request has waited in this step for as long as it may."""

    request: RequestState
    step: WaitStep


class ProbeDue(NamedTuple):
    """A call that is to show that its worker is well again has run for long enough."""

    reservation: Reservation


Due = Wait | ProbeDue


class RequestState:
    """`record`: what it has seen workers do. `avoid`: workers that it failed on."""

    __slots__ = (
        "arrived", "attempt", "attempts", "avoid", "blamed", "busy", "calls", "credit", "deadline",
        "entered", "failure", "faults", "generated", "number", "pair", "place", "prefill_rank",
        "queue_role", "record", "shape", "step", "streams", "timer", "view",
    )  # fmt: skip

    def __init__(
        self, number: int, view: RequestView, shape: Shape, streams: bool, arrived: float,
        deadline: float,
    ) -> None:  # fmt: skip
        self.number = number
        self.view = view
        self.shape = shape
        self.streams = streams
        self.arrived = arrived
        self.deadline = deadline
        self.step = WaitStep.HOST
        self.attempt = 0
        """Those before the current one, moves included."""
        self.attempts = 0
        """Those that failed."""
        self.busy = 0
        """Of those, that a worker turned away as it was full."""
        self.generated = 0
        """Output tokens that the current attempt has in its prompt."""
        self.record = Record()
        self.avoid: set[str] = set()
        self.faults: list[str] = []
        """Workers that failed it in a way that is theirs."""
        self.blamed: dict[str, str] = {}
        """Whose fault it is in truth that KV did not get across, by the worker that said so; empty
        where it is neither's."""
        self.pair: Pair | None = None
        """Between which its KV is on the way."""
        self.failure: Failed | None = None
        self.prefill_rank: RankState | None = None
        self.calls: list[Reservation] = []
        """Of the current attempt."""
        self.credit: RankState | None = None
        """Whose credit it holds."""
        self.place: Reservation | None = None
        """Kept for it on a rank that it is being moved to."""
        self.queue_role = ""
        """The role of the queue that it waits in; empty: in none."""
        self.entered = 0.0
        """When it began to wait."""
        self.timer: TimerEntry[Due] | None = None
        """When it has waited for long enough."""

    @property
    def prompt(self) -> int:
        """Prompt tokens, without what was generated."""
        return max(0, self.view.prompt_tokens - self.generated)

    @property
    def decode(self) -> Reservation | None:
        """Its call to the rank that answers it; None where it has none."""
        for call in reversed(self.calls):
            if not call.over and call.rank.worker.spec.role != "prefill":
                return call
        return None

    def still(self) -> None:
        """It does not wait for a time any more."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
