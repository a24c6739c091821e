"""How often and for how long one best-effort request may be stopped in all."""

from dataclasses import dataclass
from math import isnan


@dataclass(slots=True)
class Paused:
    """What one request has been through, over all passes of its prompt."""

    pauses: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """A request that has been stopped `pauses` times, or for `seconds` in all, is not stopped any
    more: its passes run to their end. (*Ours*: the paper leaves starvation open.)

    A pause ends when its `seconds` are used up, too: latency-sensitive requests run in batches, and
    none of them begins after that. So a request stands still for less than

        seconds + B,

    B the longest of their batches with what is left of a prompt that it began, and in at most
    `pauses` pieces, whatever arrives and whatever the policy says. ValueError: a bound
    that is negative or not a number.
    """

    pauses: int = 32
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.pauses < 0:
            raise ValueError(f"pauses = {self.pauses} must be at least 0")
        if isnan(self.seconds) or self.seconds < 0:
            raise ValueError(f"seconds = {self.seconds:g} must be at least 0")

    def may_begin(self, paused: Paused) -> bool:
        """Whether one more pause may begin."""
        return paused.pauses < self.pauses and paused.seconds < self.seconds

    def may_go_on(self, paused: Paused, since_s: float) -> bool:
        """Whether in a pause that began `since_s` ago, and is not in `paused` yet, one more batch
        of latency-sensitive requests may begin."""
        return paused.seconds + since_s < self.seconds
