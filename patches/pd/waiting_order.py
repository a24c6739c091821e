"""A scheduler's waiting requests in the order of `toolkit.policies.sjf`, without SGLang.

Every rank runs this on its own copy of the queue, so it looks at nothing that is the rank's own: at
the clock that the ranks share (`patches.pd.waiting_queue`), the requests, and what the prefix cache
found for them, which is the same on every rank as long as the caches see the same calls in the same
order. So requests are matched in an order that does not depend on how the queue was arranged.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from patches.sglang_types import Req
from toolkit.policies.sjf import ShortestFirst, WaitingRequest

MATCHES_A_ROUND = 128
"""Prefix matches a round at most: SGLang's own limit for its cache-aware policies, which fall back
to the order of arrival beyond it (`SchedulePolicy._determine_active_policy`)."""
_SINCE = "_toolkit_waits_since"
_MATCHED = "_toolkit_matched_at"
_AGED = "_toolkit_aged"


def arrived(req: Req, clock: int) -> None:
    """Note when a request came to this worker; a later call (it was retracted) changes nothing."""
    if not hasattr(req, _SINCE):
        setattr(req, _SINCE, clock)


@dataclass
class OrderTally:
    """What the order did since the start: `rounds` with two or more waiting; `reordered`, those of
    them in which it was not that of arrival; `aged`, requests that reached the age while they
    waited. `longest` wait that was seen, in units of the clock."""

    rounds: int = 0
    reordered: int = 0
    aged: int = 0
    longest: int = 0


class WaitingOrder:
    """Sorts waiting requests in place; remembers when each was matched against the cache."""

    def __init__(self, order: ShortestFirst) -> None:
        self.order = order
        self.tally = OrderTally()

    def match(self, queue: Iterable[Req], counter: int, match: Callable[[Req], object]) -> None:
        """Have `match` set `num_matched_prefix_tokens` where it may be out of date.

        `counter`: prefill tokens computed so far. Prefills put prompts into the cache and others
        out of it, so while it stands still nobody is matched twice (what a plain worker's decode
        put out is noticed at the next prefill). At most MATCHES_A_ROUND at a time, who never was
        first, then who was longest ago, so that all are within a few rounds.
        """
        due = [req for req in queue if getattr(req, _MATCHED, None) != counter]
        due.sort(key=lambda req: (getattr(req, _MATCHED, -1), getattr(req, _SINCE, 0), req.rid))
        for req in due[:MATCHES_A_ROUND]:
            match(req)
            setattr(req, _MATCHED, counter)

    def sort(self, queue: list[Req], clock: int, sign: int = 0) -> None:
        """Arrange `queue`. `sign`: 1 where a greater `priority` goes first, -1 where a smaller one
        does, 0 where the server ignores priorities."""
        for req in queue:
            arrived(req, clock)
        waiting = [_queued(req, sign) for req in queue]
        order = self.order.order(waiting, clock)
        self._count(queue, waiting, order, clock)
        queue[:] = [queue[index] for index in order]

    def _count(
        self, queue: list[Req], waiting: list[WaitingRequest], order: list[int], clock: int
    ) -> None:
        if len(order) < 2:
            return
        tally = self.tally
        tally.rounds += 1
        since = [waiting[index].since for index in order]
        tally.reordered += any(one > two for one, two in pairwise(since))
        tally.longest = max(tally.longest, clock - min(since))
        for req, one in zip(queue, waiting, strict=True):
            if clock - one.since >= self.order.theta_age and not hasattr(req, _AGED):
                setattr(req, _AGED, True)
                tally.aged += 1


def _queued(req: Req, sign: int) -> WaitingRequest:
    # A retracted request computes its output again too.
    tokens = len(req.origin_input_ids) + len(req.output_ids) - req.num_matched_prefix_tokens
    return WaitingRequest(req.rid, tokens, getattr(req, _SINCE), sign * req.priority if sign else 0)
