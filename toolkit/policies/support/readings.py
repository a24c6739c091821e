"""What the ranks carry at the start of a round, and what a request will add."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from toolkit.policies.views import Load, RequestView, WorkerView

HUGE = 2**40
"""No load and no prompt is that long; what is longer, negative or NaN is no number to act on."""


@dataclass(slots=True)
class Ranks:
    """The healthy ranks, one entry of each list for each.

    - `index`: where it stands among the workers that were given; `keys`: its (name, DP rank)
    - `load`: L_g, KV tokens that are on it or on their way to it
    - `slots`: requests that it can still take, infinite where it does not say
    - `room`: KV tokens that one more request may bring, below 0 where none may come, infinite where
      the pool's size is unknown
    - `reserve`: KV tokens by which the room shrinks with every request, beside its own
    - `paces`: tokens that a step gives a request
    - `silent`: has no reading while others have one; counts as loaded
    - `pool`: the largest room of an empty one among them
    """

    index: list[int]
    keys: list[tuple[str, int]]
    load: list[float]
    slots: list[float]
    room: list[float]
    reserve: list[int]
    silent: list[bool]
    pool: float
    paces: list[float] = field(default_factory=list)

    def open(self, size: float) -> list[int]:
        """The ranks that can take a request of this size now. One that no pool could hold is
        answered by any of them, as the engine does."""
        fits = size > self.pool
        return [
            g for g, free in enumerate(self.slots) if free >= 1 and (fits or self.room[g] >= size)
        ]

    def surely_open(self, size: float) -> list[int]:
        """`open` without silent ones, as long as there are others."""
        open_ = self.open(size)
        return [g for g in open_ if not self.silent[g]] or open_

    def take(self, g: int, size: float, count: int = 1) -> None:
        """`count` requests of together `size` KV tokens go to rank g. One that no pool could hold
        brings none: the engine refuses it."""
        self.slots[g] -= count
        self.room[g] -= count * self.reserve[g] + (size if size <= self.pool else 0.0)


def read_ranks(workers: Sequence[WorkerView]) -> Ranks:
    """The healthy ranks, with L_g = used + waiting + sent since the reading, and their room
    total - L_g - reserve * (requests + 1).

    A rank whose reading is missing (too old, never came) or impossible (negative, NaN) is *silent*:
    L_g is then the heaviest rank's, or this router's own count where that is more, so that it has
    no margin; and it comes after all others. What stopped publishing may hang, and an empty-looking
    rank would draw everything. Where all are silent, own counts are all there is. A used part above
    the pool counts as the full pool.
    """
    ranks = Ranks([], [], [], [], [], [], [], 0.0)
    index, keys, loads, slots = ranks.index, ranks.keys, ranks.load, ranks.slots
    rooms, reserves, silents, paces = ranks.room, ranks.reserve, ranks.silent, ranks.paces
    heaviest, biggest = 0.0, 0.0
    for at, worker in enumerate(workers):
        if not worker.healthy:
            continue
        load = worker.load
        room = inf
        silent = load is None or not possible(load)
        if silent or load is None:
            tokens = float(worker.inflight_tokens) if 0 <= worker.inflight_tokens < HUGE else 0.0
            requests = worker.inflight if 0 <= worker.inflight < HUGE else 0
            total = 0
        else:
            used, total = load.used_tokens, load.total_tokens
            tokens = float(total if 0 < total < used else used)
            tokens += load.waiting_tokens + load.sent_tokens
            requests = load.running + load.waiting + load.sent_requests
            if tokens > heaviest:
                heaviest = tokens
        reserve, free = worker.reserve, worker.slots - requests
        if not total:
            biggest = inf
        else:
            room = total - tokens - reserve * (requests + 1)
            if total - reserve > biggest:
                biggest = total - reserve
        index.append(at)
        keys.append((worker.name, worker.dp_rank))
        loads.append(tokens)
        slots.append(inf if worker.slots <= 0 else free if free > 0 else 0.0)
        rooms.append(room)
        reserves.append(reserve)
        silents.append(silent)
        paces.append(worker.step_tokens)
    ranks.pool = biggest
    if all(ranks.silent):
        ranks.silent = [False] * len(ranks.silent)
    for g, silent in enumerate(ranks.silent):
        if silent:
            ranks.load[g] = max(ranks.load[g], heaviest)
    return ranks


def kv_tokens(request: RequestView) -> float:
    """KV tokens that it brings: its whole prompt, cached or not. 0 for an impossible number."""
    return kv_sizes([request])[0]


def kv_sizes(waiting: Sequence[RequestView]) -> list[float]:
    """`kv_tokens` of each."""
    return [
        float(tokens) if 0 < (tokens := request.prompt_tokens) < HUGE else 0.0
        for request in waiting
    ]


def possible(load: Load) -> bool:
    """Whether every number of a reading could be true."""
    return (
        0 <= load.used_tokens < HUGE
        and 0 <= load.total_tokens < HUGE
        and 0 <= load.waiting_tokens < HUGE
        and 0 <= load.sent_tokens < HUGE
        and 0 <= load.running < HUGE
        and 0 <= load.waiting < HUGE
        and 0 <= load.sent_requests < HUGE
    )
