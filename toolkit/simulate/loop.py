"""A scheduler's loop: continuous batching, KV capacity with retraction, the barrier of a group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Any

from toolkit.simulate.costs import links_of, minds_lengths
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.events import Event, Events
from toolkit.simulate.expert_time import ExpertTime
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.hops import seconds_of, steps_in
from toolkit.simulate.longest import Longest
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request
from toolkit.simulate.scheduling import Scheduling

if TYPE_CHECKING:
    import numpy as np

HOP = 64
"""Steps that are taken at once at most: over so many the time of a step is a straight line."""


class Loop(ABC):
    """The loop of ranks that take every step together (DP attention), or of one rank.

    Here are the batches; who gets into them, and when, is its subclasses'.

    Nothing is simulated step by step: between two changes of its batches a group takes steps whose
    time is a straight line of their number, so many of them are one event (`HOP`). Whatever comes
    in between waits for the end of the step that runs (`at_boundary`), as it does in a scheduler,
    which looks around once a step.
    """

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        ranks: Sequence[SimulatedRank],
        scheduling: Scheduling,
        experts: SimulatedExperts | None,
        on_first: Callable[[SimulatedRank, Request], None],
        on_end: Callable[[SimulatedRank, Request], None],
        neighbours: Neighbours | None = None,
    ) -> None:
        """`on_first`: a request's first token is out. `on_end`: its last one is.
        `neighbours`: those that slow it down."""
        import numpy as np

        drafting = scheduling.drafting
        counted = np.dtype(np.int64 if drafting is None else np.float64)
        self.pace: float = 1 if drafting is None else drafting.accepted
        """Tokens that a step gives a request."""
        self._ahead = 1 if drafting is None else drafting.held
        """KV tokens that must be free for a request's next step."""
        self.events = events
        self.cost = cost
        self.ranks = list(ranks)
        self.scheduling = scheduling
        self.requests: np.ndarray = np.zeros(len(ranks), dtype=np.int64)
        self.kv: np.ndarray = np.zeros(len(ranks), dtype=counted)
        """Of its batches at the last boundary that was looked at; `kv_of` says it now."""
        self._running = 0
        """Requests in all its batches."""
        self._roomy = False
        """No pool can be full within HOP steps, whosever the requests are that run."""
        self.coming: np.ndarray = np.zeros(len(ranks), dtype=np.int64)
        """KV tokens for which a place is kept, on their way or being computed."""
        self.made: np.ndarray = np.zeros(len(ranks), dtype=counted)
        """Tokens that each rank's decode steps have made."""
        self.capacity: np.ndarray = np.array([rank.capacity for rank in ranks], dtype=np.int64)
        self.steps = 0
        """Taken since the start, at that boundary."""
        self.skips = 0
        """Steps that one of its ranks did not take, in all."""
        self.busy_s = 0.0
        self.distinct_steps = 0.0
        """Sum over steps of distinct experts."""
        self.crossing_steps_s = 0.0
        """Sum over steps of what their all-to-all took."""
        for place, rank in enumerate(self.ranks):
            rank.place, rank.shares_experts = place, len(self.ranks) > 1
        self._experts = None
        if experts is not None:
            self._experts = ExpertTime(experts, links_of(cost), len(self.ranks))
        self._longest = Longest(self.ranks, self.pace) if minds_lengths(cost) else None
        self._on_first, self._on_end = on_first, on_end
        self._agenda: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()
        self._ends: list[tuple[int, int, Request, SimulatedRank]] = []
        self._leaves: list[tuple[int, int, Request, SimulatedRank]] = []
        self._neighbours = neighbours
        self._speed = 1.0
        self._worked = 0.0
        """Seconds of these steps that were done before the speed changed last."""
        self._since = 0.0
        """When it did."""
        self._taken_at, self._taken = -1.0, 0
        """How many of these steps were over when: every rank is asked for them."""
        self._kv_after, self._kv_now = -1, [0] * len(ranks)
        """Of each rank, when so many of these steps were over; -1: its batch has changed since."""
        self._begin = 0.0
        self._first_s = 0.0
        self._slope_s = 0.0
        self._hop = 0
        self._planned: Event | None = None

    def at_boundary(self, action: Callable[..., None], *given: object, steps: int = 0) -> None:
        """Call it when the step that runs has ended, and `steps` more; at once in an idle group."""
        if self._hop:
            after = self.taken() + 1 + steps
            self._agenda.append((self.steps + after, action, given))
            self._cut(after)
            return
        self._agenda.append((self.steps, action, given))
        if self._planned is None:
            self._planned = self.events.at(self.events.now, self._boundary)

    def taken(self) -> int:
        """Whole steps since the boundary that was looked at last."""
        now = self.events.now
        if now == self._taken_at:
            return self._taken
        self._taken_at = now
        self._taken = min(self._hop, steps_in(self._work(), *self._line)) if self._hop else 0
        return self._taken

    def _set_hop(self, hop: int) -> None:
        """So many steps are under way, of which nobody has asked how many are over."""
        self._hop, self._taken_at, self._kv_after = hop, -1.0, -1

    def _work(self) -> float:
        """Seconds of these steps, at full speed, that are done."""
        return self._worked + (self.events.now - self._since) * self._speed

    def set_speed(self, speed: float) -> None:
        """From now on; 1 is that of the cost model."""
        if speed == self._speed:
            return
        self._worked, self._since = self._work(), self.events.now
        self._speed = speed
        if self._hop and self._planned is not None:
            self._planned.cancel()
            self._plan_end()

    def _plan_end(self) -> None:
        left = seconds_of(self._hop, *self._line) - self._work()
        self._planned = self.events.after(max(0.0, left) / self._speed, self._boundary)

    def kv_now(self) -> list[int]:
        """KV tokens of each rank's batch now, at the last boundary."""
        taken = self._taken if self.events.now == self._taken_at else self.taken()
        if taken != self._kv_after:
            kv = self.kv + self.requests * (taken * self.pace) if taken else self.kv
            now = kv.tolist()
            if self.scheduling.drafting is not None:
                now = [*map(ceil, now)]  # else they are whole
            self._kv_after, self._kv_now = taken, now
        return self._kv_now

    def kv_of(self, place: int) -> int:
        """`kv_now` of a rank."""
        return self.kv_now()[place]

    def computing(self, place: int) -> int:
        """KV tokens of prompts that a rank computes itself, now."""
        return 0

    def progress(self) -> tuple[int, int]:
        """While this is the same, `tokens_of` is the same for every rank."""
        return self.steps + self.taken(), self.skips

    @property
    def _line(self) -> tuple[float, float]:
        return self._first_s, self._slope_s

    def tokens_of(self, rank: SimulatedRank) -> int:
        """What the rank's decode steps have given a request that was there all the time."""
        return self.said_in(self.steps + self.taken() - rank.skipped)

    def said_in(self, steps: int) -> int:
        """Whole tokens that so many steps give a request."""
        return int(steps * self.pace)

    def steps_for(self, tokens: int) -> int:
        """In which a request gets so many."""
        return -int(-tokens // self.pace)

    @abstractmethod
    def arrive(self, rank: SimulatedRank, request: Request) -> None:
        """A request was sent to one of the ranks."""

    @abstractmethod
    def _freed(self, rank: SimulatedRank) -> None:
        """Somebody has left the rank's batch."""

    @abstractmethod
    def _retracted(self, rank: SimulatedRank, request: Request) -> None:
        """It has lost its KV, with `generated` tokens of its answer done."""

    def _prepare(self) -> None:
        """All that has happened is known: what comes next?"""
        self._make_room()

    def _room(self, rank: SimulatedRank) -> int:
        """KV tokens of its pool that nobody has, now."""
        place = rank.place
        held = (self._ahead - 1) * len(rank.running)
        return rank.capacity - self.kv_of(place) - int(self.coming[place]) - held

    def _enter(self, rank: SimulatedRank, request: Request, generated: int) -> None:
        """Into the batch, with so many tokens of its answer."""
        request.generated, request.joined = generated, self.steps
        rank.running[request] = None
        self._count(rank, 1)
        self.kv[rank.place] += request.prompt + generated - 1
        if self._experts is not None and request.row >= 0:
            self._experts.add(rank.place, request.row)
        if self._longest is not None:
            self._longest.add(rank, request)
        last = self.steps + self.steps_for(request.output - generated)
        plan = self.scheduling
        # An answer of one token is over with its prefill.
        heappush(self._ends, (last + plan.notices, request.number, request, rank))
        heappush(
            self._leaves, (last + max(plan.stays, plan.notices), request.number, request, rank)
        )

    def _leave(self, rank: SimulatedRank, request: Request) -> None:
        del rank.running[request]
        place = rank.place
        self._count(rank, -1)
        grown = (self.steps - request.joined) * self.pace
        self.kv[place] -= request.prompt + request.generated - 1 + grown
        if self._experts is not None and request.row >= 0:
            self._experts.remove(place, request.row)

    def _count(self, rank: SimulatedRank, change: int) -> None:
        """Somebody comes into the rank's batch, or goes."""
        self.requests[rank.place] += change
        self._running += change
        self._kv_after = -1

    def _boundary(self) -> None:
        """A step has ended: count what was done, let go who is through, let in who is there."""
        self._planned = None
        self._advance()
        self._finish()
        self._do_agenda()
        self._finish()  # an answer of one token was over with its prefill
        self._prepare()
        self._plan()

    def _finish(self) -> None:
        while self._ends and self._ends[0][0] <= self.steps:
            _, _, request, rank = heappop(self._ends)
            self._on_end(rank, request)
        touched = {}
        while self._leaves and self._leaves[0][0] <= self.steps:
            _, _, request, rank = heappop(self._leaves)
            self._leave(rank, request)
            touched[rank.place] = rank
        for rank in touched.values():
            self._freed(rank)

    def _advance(self) -> None:
        if not self._hop:
            return
        hop = self._hop
        grown = self.requests * (hop * self.pace)
        self.kv += grown
        self.made += grown
        self.steps += hop
        self._count_experts(hop)
        self.busy_s += self.events.now - self._begin
        self._set_hop(0)

    def _do_agenda(self) -> None:
        later = []
        while self._agenda:
            due, action, given = self._agenda.popleft()
            if due <= self.steps:
                action(*given)
            else:
                later.append((due, action, given))
        self._agenda.extend(later)

    def _make_room(self, stepping: np.ndarray | None = None) -> None:
        """Retract where the next step's tokens do not fit; `stepping`: 0 for who takes none, None:
        all take it."""
        least = min((self.capacity - self.kv - self.coming).tolist())
        self._roomy = least >= self._running * (self._ahead + HOP * self.pace)
        if self._roomy:
            return
        steps = 1 if stepping is None else stepping
        needed = self.kv + self.requests * (self._ahead - 1 + steps) + self.coming
        short = (needed > self.capacity) & (self.requests > 1)
        for place in short.nonzero()[0].tolist():
            rank = self.ranks[place]
            while len(rank.running) > 1 and self._room(rank) < len(rank.running):
                self._retract(rank)

    def _retract(self, rank: SimulatedRank) -> None:
        """As SGLang (`retract_decode`): who has generated least, of those the longest prompt."""
        victim = min(rank.running, key=lambda r: (r.generated - r.joined * self.pace, -r.prompt))
        self._leave(rank, victim)
        victim.generated = min(victim.output, self._said(victim))
        victim.retracted += 1
        told = not any(entry[2] is victim for entry in self._ends)
        self._forget(victim)
        if victim.generated < victim.output:
            self._retracted(rank, victim)
        elif not told:
            self._on_end(rank, victim)

    def _said(self, request: Request) -> int:
        """Tokens of its answer at the last boundary of one that runs here; with a draft they may be
        more than it is to have."""
        return request.generated + self.said_in(self.steps - request.joined)

    def _forget(self, request: Request) -> None:
        """Nothing is due any more that was planned for it."""
        for heap in (self._ends, self._leaves):
            heap[:] = [entry for entry in heap if entry[2] is not request]
            heapify(heap)

    def _plan(self) -> None:
        """The next steps, up to the next thing that is known to happen."""
        if not self._running:
            self._tell_neighbours()
            if self._agenda:  # its time is counted in steps, and there are none
                self._agenda = deque((0, action, given) for _, action, given in self._agenda)
                self._planned = self.events.at(self.events.now, self._boundary)
            return
        hop = min(HOP, self._steps_left())
        self._look_at_experts()
        # Attention reads what is there with the token of this very step.
        first = self._step_s(1)
        slope, once = 0.0, self._once_s()
        if once:
            first, hop = first + once, 1
        elif hop > 1:
            last = self._step_s(hop)
            slope = (last - first) / (hop - 1)
        self._start(hop, first, slope)

    def _step_s(self, ahead: int, stepping: np.ndarray | None = None) -> float:
        """The step from now that makes the `ahead`-th token; `stepping` as `_make_room`."""
        requests, kv = self.requests, self.kv + (ahead * self.pace) * self.requests
        longest = None
        if self._longest is not None:
            longest = self._longest.now(self.steps) + ahead * self.pace
        if stepping is not None:
            requests, kv = requests * stepping, kv * stepping
            longest = None if longest is None else longest * stepping
        found = self._experts
        if found is None:
            return self.cost.decode_s(requests, kv, 0.0, longest)
        seconds = self.cost.decode_s(requests, kv, found.busiest, longest)
        return seconds + found.crossing_s + found.moving_s

    def _look_at_experts(self) -> None:
        if self._experts is not None:
            self._experts.look()

    def _count_experts(self, steps: int) -> None:
        """What so many steps loaded, and their all-to-all."""
        if self._experts is not None:
            self.distinct_steps += self._experts.distinct * steps
            self.crossing_steps_s += self._experts.crossing_s * steps

    def _once_s(self) -> float:
        """Seconds of the next step that those after it do not take."""
        return 0.0

    def _start(self, hop: int, first: float, slope: float) -> None:
        """So many steps from now, of which the j-th (from 0) takes first + j * slope seconds."""
        self._first_s, self._slope_s = first, slope
        self._begin = self._since = self.events.now
        self._worked = 0.0
        self._set_hop(hop)
        self._plan_end()
        self._tell_neighbours()

    def _tell_neighbours(self) -> None:
        if self._neighbours is None:
            return
        if not self._hop:
            self._neighbours.idle(self)
            return
        self._neighbours.busy(self, "decode")

    def _steps_left(self) -> int:
        """Until something is due, or a pool is full; 1 at least. What is beyond HOP is not looked
        at."""
        due = [when for when, _, _ in self._agenda]
        due += [heap[0][0] for heap in (self._ends, self._leaves) if heap]
        left = min(due) - self.steps
        if not self._roomy and (several := self.requests > 1).any():
            requests = self.requests[several]
            room = (self.capacity - self.kv - self.coming)[several] - (self._ahead - 1) * requests
            left = min(left, int((room // (requests * self.pace)).min()))
        return max(1, left)

    def _cut(self, hop: int) -> None:
        """Look around after so many steps already."""
        if 0 < hop < self._hop and self._planned is not None:
            self._planned.cancel()
            self._set_hop(hop)
            self._plan_end()
