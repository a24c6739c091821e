"""What the decider takes for a request and for a worker's load, by the number of ranks.

The pure object (`toolkit/decide`) alone, without sockets: half as many prefill ranks as decode
ranks, 16 requests in flight on each decode rank. Of each policy and number of decode ranks:

- `request_us`: all messages of a request, from its arrival to its end: two choices, two calls.
- `load_us`: a published reading of one rank.

CPU time of one process, the median of `rounds` blocks. Nothing is asserted. Run as
`python -m tests.benchmarks.decider_ranks [--quick]`.
"""

import random
import statistics
from collections import deque
from time import process_time
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from toolkit.decide import messages as m
from toolkit.decide.bounds import DeciderBounds
from toolkit.decide.decider import Decider
from toolkit.decide.ranks import KnownRanks, WorkerSpec, WorkerState
from toolkit.decide.reservation import Reservation
from toolkit.decide.watchdog import StuckBounds
from toolkit.policies import make_policy
from toolkit.policies.base import RequestView

MEASURES = ("toolkit/decide", "toolkit/policies")

RANKS = (24, 128, 512)
POLICIES = ("shortest_queue", "kv_shortest_queue", "level")
EACH = 16
"""Requests in flight on a decode rank."""
BOUNDS = DeciderBounds(
    late=True, park_timeout_s=30.0, prefill_wait_s=60.0, no_worker_wait_s=1.0, rerun_wait_s=60.0,
    max_retries=3, max_inflight=1 << 20, eject_share=0.5, kept_back=0,
)  # fmt: skip


class Fleet:
    """A decider and its ranks; who runs is replaced one by one, the oldest first."""

    def __init__(self, decodes: int, policy: str) -> None:
        roles = [("prefill", decodes // 2), ("decode", decodes)]
        specs = [WorkerSpec(f"{role}-{n}", role, parked=64) for role, count in roles
                 for n in range(count)]  # fmt: skip
        stuck = StuckBounds(stuck_s=5.0, announced_s=60.0)
        self.ranks = KnownRanks([WorkerState(spec, stuck) for spec in specs], 0.0)
        self.decider = Decider(self.ranks, BOUNDS, None)
        self.now = 1.0
        self._random = random.Random(1)
        self._numbers = 0
        self._running: deque[tuple[int, Reservation]] = deque()
        for side, name in (("prefill", "round_robin"), ("decode", policy)):
            self.decider.on(m.UsePolicy(side, make_policy(name, 1, side)), self.now)
        for spec in specs:
            self.decider.on(m.WorkerGreeted(spec.name, slots=64), self.now)
            self.decider.on(m.WorkerUp(spec.name), self.now)
        self.decodes = self.ranks.of("decode")
        for rank in self.decodes:
            self.read(rank.key)
        for _ in range(EACH * decodes):
            self.arrive()

    def read(self, key: m.Key) -> None:
        """A rank publishes what is there."""
        rank = self.ranks.rank(key)
        reading = {"running": rank.inflight, "waiting": 0, "used_tokens": rank.inflight_tokens,
                   "total_tokens": 400_000, "waiting_tokens": 0}  # fmt: skip
        self.now += 1e-5
        self.decider.on(m.LoadRead(key, reading), self.now)

    def arrive(self) -> None:
        """A request comes, is prefilled, and decodes from now on."""
        self._numbers += 1
        number, view = self._numbers, RequestView(prompt_tokens=self._random.randrange(100, 8_000))
        self.now += 1e-5
        on, now = self.decider.on, self.now
        orders = on(m.Arrive(number, view, "split", True, now, now + 600.0), now)
        (prefill,) = (each.reservation for each in orders if isinstance(each, m.PrefillOrder))
        orders = on(m.Proven(number, prefill, decode=False), now)
        orders += on(m.Prefilled(number, view), now)
        while not any(isinstance(each, m.DecodeOrder) for each in orders):
            self.now = now = max(now, self.decider.due or now) + 1e-6
            orders += on(m.TimePassed(), now)
        (decode,) = (each.reservation for each in orders if isinstance(each, m.DecodeOrder))
        on(m.Proven(number, decode, decode=True), now)
        on(m.CallReleased(prefill, "served", True, 0, True), now)
        self._running.append((number, decode))

    def end(self) -> None:
        """The oldest one has its answer."""
        number, decode = self._running.popleft()
        self.decider.on(m.CallReleased(decode, "served", True, 200, True), self.now)
        self.decider.on(m.RequestEnded(number, served=True), self.now)


def measure(decodes: int, policy: str, quick: bool) -> dict[str, float]:
    fleet, rounds = Fleet(decodes, policy), 3 if quick else 9
    requests, loads = 200, 2_000
    source = random.Random(2)
    request_us, load_us = [], []
    for _ in range(rounds):
        keys = [source.choice(fleet.decodes).key for _ in range(loads)]
        begin = process_time()
        for key in keys:
            fleet.read(key)
        load_us.append((process_time() - begin) / loads * 1e6)
        begin = process_time()
        for _ in range(requests):
            fleet.end()
            fleet.arrive()
        request_us.append((process_time() - begin) / requests * 1e6)
    return {
        "request_us": statistics.median(request_us),
        "load_us": statistics.median(load_us),
        "rounds": rounds,
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    told: dict[str, Any] = {}
    for policy in POLICIES:
        told[policy] = {str(n): measure(n, policy, options.quick) for n in RANKS}
    result.keys |= told
    result.emit(3 if options.quick else 9)


if __name__ == "__main__":
    main()
