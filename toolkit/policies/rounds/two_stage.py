"""BalanceRoute's two stages: which rank is next, and whom of those who wait it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Protocol

from toolkit.policies.rounds.assign import Assignment
from toolkit.policies.rounds.unassigned import Unassigned
from toolkit.policies.support.readings import Ranks

R_MAX = 4
WAIT_LIMIT = 64
LOOK = 64
"""Of those who wait so many are asked whether they are near."""

Near = Callable[[int, int], bool]
"""Whether rank g, a position in `Ranks`, is one of those that a request (by its index) prefers."""


class Envelope(Protocol):
    """The loads of all ranks during a round, and what adding to one of them is worth (F)."""

    def burden(self, g: int) -> float:
        """Rank g's load in tokens, for the order among ranks: less is more margin."""

    def peak(self, g: int) -> float:
        """The size in tokens at which F_g is highest. F_g is concave in the size."""

    def values(self, g: int, sizes: Sequence[float]) -> list[float]:
        """F_g of each size."""

    def across(self, size: float) -> list[float]:
        """F of one size on every rank."""

    def add(self, g: int, size: float) -> None:
        """Rank g has taken that much."""


@dataclass
class RoundCounters:
    """What the rounds did. `placed` counts requests, of which `bypassed` came alone and chose the
    rank, `greedy` were placed by stage 1; `forced` sets had no F above 0, `overdue` requests had
    waited at the head while `wait_limit` others passed; `oversized` fit in no pool."""

    rounds: int = 0
    placed: int = 0
    bypassed: int = 0
    greedy: int = 0
    forced: int = 0
    overdue: int = 0
    oversized: int = 0


class TwoStage:
    """Places requests on ranks until no slot is free that a waiting request could use.

    A request alone (*pool bypass*: it came while a slot was free) takes the rank with the best F.
    Stage 1, while more than `s_greedy` slots are free in all: the rank with the least load takes
    the one waiting request with the best F. Nobody is passed over for long, all get a slot soon.
    (*Ours*: in the paper it is the rank with most free slots, which levels the numbers of requests
    and not what they hold. Below saturation, where all is placed by stage 1, that is more uneven
    than the shortest queue by KV tokens. `by_slots`: as in the paper.)
    Stage 2, slots are scarce: a heap of ranks on (free slots, margin); the first takes the best
    subset of the first `r_max` requests, so that small ones fill what a large one leaves, and goes
    back. A best F of 0 or less places the best single request anyway: a slot is never kept free.

    Where the paper (as far as we have it) is silent, *ours*: margins break ties of free slots, then
    whoever comes after the rank chosen last; the better F, then more requests, then the earlier
    ones, break ties of subsets. `s_greedy` None is `r_max` slots a rank;
    at 0 every placement chooses from the whole pool, which in a full closed loop about halves the
    imbalance again, and lets the largest requests wait for hundreds of steps. One rank alone has
    nothing to balance and takes requests in order of arrival. Silent ranks come last. A request
    must fit in the rank's free KV, and the first `r_max` are the first that fit; one larger than
    every pool goes to a rank all the same, which answers it as the engine does.
    With `near` (*ours*) a rank chooses among those of the first 64 that prefer it, as long as there
    is one: a slot is not kept free for it.
    `wait_limit`: once that many others were placed while the same request stood at the head of the
    pool, it is next, whatever its F (infinite: the paper).
    """

    def __init__(
        self, s_greedy: int | None, r_max: int, wait_limit: float, by_slots: bool = False
    ) -> None:
        if not 1 <= r_max <= 8:
            raise ValueError(f"r_max = {r_max} must lie in 1..8: it takes 2^r_max subsets")
        if s_greedy is not None and s_greedy < 0:
            raise ValueError(f"s_greedy = {s_greedy} must not be negative")
        if not wait_limit >= 1:
            raise ValueError(f"wait_limit = {wait_limit:g} must be at least 1")
        self.s_greedy = s_greedy
        self.r_max = r_max
        self.wait_limit = wait_limit
        self.by_slots = by_slots
        self.counters = RoundCounters()
        self._passed = 0
        self._turn = 0

    def assign(
        self,
        ranks: Ranks,
        sizes: Sequence[float],
        envelope: Envelope,
        near: Near | None = None,
    ) -> list[Assignment]:
        """One round. `sizes`: KV tokens of those who wait, in order of arrival."""
        self.counters.rounds += 1
        if len(sizes) == 1 and len(ranks.load) > 1 and sizes[0] <= ranks.pool:
            return self._bypass(ranks, sizes[0], envelope)
        return _Round(self, ranks, sizes, envelope, near).run()

    def _bypass(self, ranks: Ranks, size: float, envelope: Envelope) -> list[Assignment]:
        open_ = [g for g, free in enumerate(ranks.slots) if free >= 1 and ranks.room[g] >= size]
        if not open_:
            return []
        values = envelope.across(size)
        count = len(ranks.load)

        silent, slots, burden, turn = ranks.silent, ranks.slots, envelope.burden, self._turn
        if True in silent:  # they come after all others
            open_ = [g for g in open_ if not silent[g]] or open_
        most = max([values[g] for g in open_])
        worth = [
            (-burden(g), slots[g], -((g - turn) % count), g) for g in open_ if values[g] == most
        ]
        g = max(worth)[-1]
        self._turn = g + 1
        self._passed = 0
        self.counters.placed += 1
        self.counters.bypassed += 1
        self.counters.forced += values[g] <= 0
        return [Assignment(0, ranks.index[g], f"alone, F {values[g]:.0f}")]


class _Round:
    """The working state of one round."""

    def __init__(
        self,
        stages: TwoStage,
        ranks: Ranks,
        sizes: Sequence[float],
        envelope: Envelope,
        near: Near | None,
    ) -> None:
        self.stages = stages
        self.ranks = ranks
        self.envelope = envelope
        self.near = near
        self.waiting = Unassigned(sizes)
        self.made: list[Assignment] = []
        count = len(ranks.load)
        self.alone = count == 1
        self.window = 1 if self.alone else stages.r_max
        self.by_slots = stages.by_slots
        """Whether the next rank is the one with most free slots, or the one with the least load."""
        self.heap: list[tuple[bool, float, float, int, int]] = []
        self._order([g for g in range(count) if ranks.slots[g] >= 1])
        self.free = sum(ranks.slots[entry[-1]] for entry in self.heap)

    def run(self) -> list[Assignment]:
        self._oversized()
        stages, pending = self.stages, self.waiting.pending
        limit = stages.s_greedy
        if limit is None:
            limit = stages.r_max * len(self.ranks.load)
        while self.heap and pending and self.free > limit and not self.alone:
            self._step(greedy=True)
        if not self.by_slots:
            self.by_slots = True
            self._order([entry[-1] for entry in self.heap])
        while self.heap and pending:
            self._step(greedy=False)
        return self.made

    def _order(self, ranks: Sequence[int]) -> None:
        self.heap = [self._entry(g) for g in ranks]
        heapify(self.heap)

    def _entry(self, g: int) -> tuple[bool, float, float, int, int]:
        ranks, turn = self.ranks, self.stages._turn
        keys = (-ranks.slots[g], self.envelope.burden(g))
        one, two = keys if self.by_slots else keys[::-1]
        return (ranks.silent[g], one, two, (g - turn) % len(ranks.load), g)

    def _step(self, greedy: bool) -> None:
        """The next rank takes something, or leaves the round because nothing fits."""
        g = heappop(self.heap)[-1]
        room, waiting, stages = self.ranks.room[g], self.waiting, self.stages
        head = waiting.pending[0]
        if stages._passed >= stages.wait_limit and waiting.sizes[head] <= room:
            stages.counters.overdue += 1
            self._place(g, [head], self.envelope.values(g, [waiting.sizes[head]])[0], "overdue")
            return
        choice = self._single(g, room) if greedy else self._subset(g, room)
        if choice is None:
            self.free = sum(self.ranks.slots[entry[-1]] for entry in self.heap)
            return
        self._place(g, choice[0], choice[1], "stage 1" if greedy else "stage 2")
        stages.counters.greedy += greedy

    def _single(self, g: int, room: float) -> tuple[list[int], float] | None:
        """The waiting request with the best F on g; None when none fits."""
        found = self._preferring(g, room, LOOK)
        found = found or self.waiting.around(self.envelope.peak(g), room)
        if not found:
            return None
        values = self.envelope.values(g, [self.waiting.sizes[i] for i in found])
        best = max(values)
        return [found[values.index(best)]], best

    def _preferring(self, g: int, room: float, count: int) -> list[int]:
        """The earliest `count` that fit in `room` and prefer g."""
        near, sizes = self.near, self.waiting.sizes
        if near is None:
            return []
        fits = (i for i in self.waiting.pending[:LOOK] if sizes[i] <= room and near(g, i))
        return [i for i, _ in zip(fits, range(count), strict=False)]

    def _subset(self, g: int, room: float) -> tuple[list[int], float] | None:
        """The best subset of the first few that fit, or the best single one when no F is above 0.
        None when none fits."""
        first = self._preferring(g, room, self.window)
        first = first or self.waiting.first(self.window, room)
        if not first:
            return None
        sizes = [self.waiting.sizes[i] for i in first]
        if len(first) > 1 and self.ranks.slots[g] >= 2:
            subsets = _subsets(len(first), int(min(self.ranks.slots[g], self.window)))
            sums = [0.0]  # of every subset, in the order of its bits
            for size in sizes:
                sums += [total + size for total in sums]
            more = self.ranks.reserve[g]  # for each member beside the first
            if sums[-1] + more * len(first) > room:
                subsets = tuple(
                    each for each in subsets if sums[each[0]] + more * (len(each) - 2) <= room
                )
            values = self.envelope.values(g, [sums[subset[0]] for subset in subsets])
            best = max(values)
            if best > 0:
                _, *members = subsets[values.index(best)]
                return [first[k] for k in members], best
            # Singles come last, in order of arrival; every one of them fits.
            values = values[-len(first) :]
        else:
            values = self.envelope.values(g, sizes)
        best = max(values)
        return [first[values.index(best)]], best

    def _place(self, g: int, chosen: list[int], value: float, why: str) -> None:
        ranks, stages, waiting = self.ranks, self.stages, self.waiting
        count = len(chosen)
        stages._passed = 0 if waiting.pending[0] in chosen else stages._passed + count
        stages._turn = g + 1
        stages.counters.placed += count
        stages.counters.forced += value <= 0
        reason = f"{why}, {count} at once, F {value:.0f}"
        size = 0.0
        for request in chosen:
            waiting.take(request)
            size += waiting.sizes[request]
            self.made.append(Assignment(request, ranks.index[g], reason))
        self.envelope.add(g, size)
        ranks.take(g, size, count)
        self.free -= count
        if ranks.slots[g] >= 1:
            heappush(self.heap, self._entry(g))

    def _oversized(self) -> None:
        """Requests that no pool could hold: to whoever is next, as load they do not count."""
        pool, waiting = self.ranks.pool, self.waiting
        if waiting.largest <= pool:
            return
        for request in [i for i, size in enumerate(waiting.sizes) if size > pool]:
            if not self.heap:
                return
            g = heappop(self.heap)[-1]
            waiting.take(request)
            self.stages.counters.placed += 1
            self.stages.counters.oversized += 1
            self.made.append(Assignment(request, self.ranks.index[g], "larger than every pool"))
            self.ranks.take(g, waiting.sizes[request])
            self.free -= 1
            if self.ranks.slots[g] >= 1:
                heappush(self.heap, self._entry(g))


@cache
def _subsets(count: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Subsets of 0..count-1 with 1 to `most` members, the larger first, singles last in order.
    Before its members each has its bits, member k counting 2^k."""
    return tuple(
        (sum(1 << k for k in subset), *subset)
        for size in range(min(most, count), 0, -1)
        for subset in combinations(range(count), size)
    )
