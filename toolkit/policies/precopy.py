"""When a request that is copied while it is decoded stops, and where it cannot.

Its KV is sent in rounds, as a live virtual machine's memory is: a round takes the pages that were
completed since the round before, while the decode goes on. When what is left fits into the time of
two decode steps, by the rate that the rounds of this very copy had, the request stops and the rest
goes over. Rows of KV are only ever appended, so no page is sent twice.

Each look is one call of `next_act`. It knows no clock: who copies measures, and says what it has
measured.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

PAUSE_STEPS = 2
"""So many steps' time may what goes over at the stop take."""
LONGEST_STOP_S = 0.1
"""What goes over at a stop may take so long where no shorter stop can be had: to compute the
request again makes its client wait longer."""
ENTIRE_S = 25.0
"""A copy that has not come to its stop by then is given up."""
NO_PROGRESS = 3
"""So many rounds in a row may leave as much as the round before."""
LEAST_RESERVE = 2048
"""Tokens that a request may generate meanwhile, also where no copy from there was measured: a
target may be busy, and places cost nothing that it does not get back."""
ALLOWANCE = 3.0
"""What was measured is one copy among others on the same link, and a longer one may be slower by
the byte (an H100 sent 134 MB at a third of the rate of 35 MB): so three times as long is allowed
for."""
SETTING_UP_S = 0.25
"""Until the target has said where pages are to go, mostly; on a GPU 0.1 s was seen."""


class Act(IntEnum):
    """What to do next, in the order in which several ranks that share a request agree: what the
    least of them says is done by all."""

    GIVE_UP = 1
    """It cannot come to a stop that is short enough."""
    REPLAY = 2
    """Nor this one, and to compute it again elsewhere makes its client wait less than a stop
    now."""
    WAIT = 3
    SEND = 4
    """A round: all whole pages that have not been sent."""
    STOP = 5
    """The request stops at its last complete token, and all that is left goes over."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy as it stands. Tokens are the request's, bytes those of this rank.

    `complete` tokens have their KV. `sent` pages are sent or on their way; `in_flight`: the last
    round of them is not over. `rounds` are over; they took `round_bytes` in `round_s`. `stuck` of
    them, the last ones, left as much as the one before. `reserve`: tokens that may still be
    generated before those that were reserved at the target are used up. `replay_s`: what a client
    waits when its request is computed again, 0 where nobody has measured it.
    """

    page_tokens: int
    page_bytes: int
    complete: int
    sent: int
    in_flight: bool
    opened: bool
    """The target has said where pages are to go."""
    rounds: int
    round_bytes: int
    round_s: float
    stuck: int
    step_s: float
    entire_s: float
    """Since it was ordered."""
    reserve: int
    replay_s: float = 0.0
    step_tokens: float = 1.0
    """That a step gives the request in the mean; more than one where drafts are accepted."""
    most_a_step: int = 1
    """Tokens that one step may give it."""

    @property
    def whole(self) -> int:
        """Pages that are complete; of the last one too little is sent at the stop."""
        return self.complete // self.page_tokens

    @property
    def pages(self) -> int:
        """Pages of all that is complete."""
        return -(-self.complete // self.page_tokens)

    @property
    def due(self) -> int:
        """Pages that the next round would take: one is left, with which the rest is told."""
        return max(0, min(self.whole, self.pages - 1) - self.sent)

    @property
    def left(self) -> int:
        """Bytes that would go over at a stop now."""
        return (self.pages - self.sent) * self.page_bytes

    @property
    def rate(self) -> float:
        """Bytes a second of the rounds; 0: none is over."""
        return self.round_bytes / self.round_s if self.round_s > 0 else 0.0

    @property
    def written(self) -> float:
        """Bytes a second that the decode adds."""
        a_step = self.step_tokens * self.page_bytes / self.page_tokens
        return a_step / self.step_s if self.step_s > 0 else 0.0

    @property
    def pause_s(self) -> float:
        """What a stop now takes; infinite where no round is over."""
        return self.left / self.rate if self.rate > 0 else math.inf

    @property
    def last_chance(self) -> bool:
        """Whether the tokens of another round would use up what is reserved; that a round is over
        is seen at the end of a step."""
        steps = self.reserve / self.most_a_step - PAUSE_STEPS
        return self.rounds > 0 and steps * self.step_s <= self.pause_s

    @property
    def fits(self) -> bool:
        """Whether a stop now is as short as one can be, or short enough: within the time of two
        steps, or the pages that two steps may write."""
        written = PAUSE_STEPS * self.most_a_step
        if self.pages - self.sent <= -(-written // self.page_tokens):
            return True
        return self.pause_s <= PAUSE_STEPS * self.step_s


@dataclass(frozen=True, slots=True)
class Next:
    """`reason`: of a copy that is given up, and of a stop that is not as short as it should be."""

    act: Act
    reason: str = ""


def next_act(copy: Copy) -> Next:
    """What to do now. Every copy comes to STOP, GIVE_UP or REPLAY: its reserve is used up, or its
    time is over, at the latest."""
    if copy.opened and not copy.in_flight:
        if copy.fits and copy.reserve >= 0:
            return Next(Act.STOP)
        reason = _never_fits(copy)
        if not reason and copy.last_chance:
            reason = "another round would take all the tokens that the target has room for"
        if reason and copy.reserve >= 0 and copy.pause_s <= LONGEST_STOP_S:
            return Next(Act.STOP, reason)
        if reason and not copy.last_chance:
            return _over(copy, reason)
    if copy.reserve <= 0:
        if not copy.opened:
            reason = "the target has not said where the KV is to go"
        else:
            reason = "it has generated all the tokens that the target has room for"
        return _over(copy, reason)
    if copy.entire_s >= ENTIRE_S:
        return _over(copy, f"it was copied for {ENTIRE_S:.0f} s and had not come to a stop")
    if copy.opened and not copy.in_flight and copy.due > 0:
        return Next(Act.SEND)
    return Next(Act.WAIT)


def _never_fits(copy: Copy) -> str:
    """Why the rounds do not get shorter; empty while they may."""
    if not copy.rounds:
        return ""
    if copy.written >= copy.rate:
        return (
            f"it writes {copy.written / 1e6:.1f} MB of KV a second, "
            f"and {copy.rate / 1e6:.1f} MB a second are sent"
        )
    if copy.stuck >= NO_PROGRESS:
        return f"what is left takes {copy.pause_s * 1e3:.1f} ms, and does not get less"
    return ""


def _over(copy: Copy, reason: str) -> Next:
    """To compute it again, all of its KV has to be sent, too: that is the estimate where nobody has
    measured it."""
    if not copy.opened or copy.rate <= 0:
        return Next(Act.GIVE_UP, reason)
    replay_s = copy.replay_s or copy.pages * copy.page_bytes / copy.rate
    return Next(Act.REPLAY if replay_s < copy.pause_s else Act.GIVE_UP, reason)


def reserve_for(tokens: int, tokens_a_second: float, token_s: float, most: int) -> int:
    """How many tokens a request may generate while `tokens` of its KV are sent: for these the
    target reserves places. The rate, and the seconds a generated token, are those of the last copy
    from there, 0 where there was none."""
    if tokens_a_second <= 0 or token_s <= 0:
        return min(most, LEAST_RESERVE)
    seconds = SETTING_UP_S + tokens / tokens_a_second
    return min(most, int(min(most, max(LEAST_RESERVE, ALLOWANCE * seconds / token_s))))
