"""One run: a fleet, what its steps cost, and the requests that arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from toolkit.policies import make_policy
from toolkit.policies.composed import eldr_of
from toolkit.policies.eldr import Centroids
from toolkit.policies.residents import Residents
from toolkit.policies.sjf import ShortestFirst, theta_tokens
from toolkit.simulate.cores import Cores
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.decode import CPU_OVERLAP, OVERLAP, PLAIN, Group, Rank
from toolkit.simulate.events import Events
from toolkit.simulate.experts import Experts
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.recorder import Recorder
from toolkit.simulate.request import Request
from toolkit.simulate.router import Router, RouterTimes

LOOPS = {"overlap": OVERLAP, "cpu": CPU_OVERLAP, "plain": PLAIN}


@dataclass(frozen=True)
class Window:
    """What is recorded: requests that arrive, and ranks as they are, between these times; or while
    a closed loop is `full`."""

    since: float = 0.0
    until: float = inf
    full: bool = False


class Simulation:
    """Builds the fleet and plays requests through it.

    `requests` come in order of arrival and are drawn one at a time, so a trace of any length needs
    no memory. With `in_flight` the arrival times are not looked at: so many are in flight at any
    time, the next comes when one has ended (a closed loop).
    """

    def __init__(
        self,
        fleet: Fleet,
        cost: CostModel,
        requests: Iterable[Request],
        experts: Experts | None = None,
        seed: int = 0,
        in_flight: int | None = None,
        window: Window | None = None,
        slo: tuple[float, float] = (inf, inf),
        sample_s: float = 0.1,
    ) -> None:
        self.fleet = fleet
        self.cost = cost
        self.events = events = Events()
        self.live = 0
        self._all_sent = False
        self._requests: Iterator[Request] = iter(requests)
        self._in_flight = in_flight
        self._sample_s = sample_s
        self._line_free: dict[str, float] = {}
        cores = Cores(fleet.machine.cores) if fleet.machine.cores else None
        self.prefills = [
            PrefillWorker(
                events,
                cost,
                f"prefill-{n}",
                self._prefilled,
                fleet.prefill.chunk,
                fleet.prefill.kv_tokens,
                _waiting(fleet, cost),
                credit=fleet.router.parked_per_prefill,
                cores=cores,
                weight=fleet.machine.prefill_weight,
            )
            for n in range(fleet.prefill.replicas)
        ]
        self.ranks, self.groups = self._decode(experts, cores)
        router = fleet.router
        prefill_policy = make_policy(router.prefill_policy, seed, "prefill")
        decode_policy = make_policy(router.decode_policy, seed, "decode", router.tau)
        locality = eldr_of(decode_policy)
        if locality is not None:
            if experts is None or experts.signatures is None:
                raise ValueError(f"decode policy {router.decode_policy} needs a profile's experts")
            keys = [rank.key for rank in self.ranks]
            locality.centroids = Centroids(
                experts.centroids(len(keys), seed), {key: row for row, key in enumerate(keys)}
            )
            locality.residents = Residents(experts.signatures.shape[1])
        self.router = Router(
            events,
            self.prefills,
            self.ranks,
            prefill_policy,
            decode_policy,
            RouterTimes(router.hop_s, router.report_s),
            router.dispatch,
            experts,
        )
        window = window or Window()
        self.recorder = Recorder(self.ranks, window.since, window.until, slo, window.full)

    def run(self, until: float = inf) -> Recorder:
        """To the end of the last request, or of the time."""
        if self._in_flight is None:
            self._next_arrival()
        else:
            for _ in range(self._in_flight):
                self._send_next()
        if self._all_sent and not self.live:
            return self.recorder  # nobody came: nothing would ever end it
        if self._sample_s < inf:
            self.events.after(self._sample_s, self._sample)
        self.events.run(until)
        return self.recorder

    def _decode(
        self, experts: Experts | None, cores: Cores | None
    ) -> tuple[list[Rank], list[Group]]:
        d = self.fleet.decode
        groups = []
        for replica in range(d.replicas):
            ranks = [
                Rank(f"decode-{replica}", dp_rank, d.slots, d.kv_tokens, d.reserve)
                for dp_rank in range(d.dp)
            ]
            together = [ranks] if d.dp_attention else [[rank] for rank in ranks]
            groups += [
                Group(
                    self.events,
                    self.cost,
                    each,
                    LOOPS[d.loop],
                    experts,
                    self._placed,
                    self._first,
                    self._ended,
                    cores,
                    self.fleet.machine.decode_weight,
                )
                for each in together
            ]
        return [rank for group in groups for rank in group.ranks], groups

    # ---- arrivals ----

    def _next_arrival(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self.events.at(request.arrived, self._arrive, request)
        else:
            self._all_sent = True

    def _arrive(self, request: Request) -> None:
        self.live += 1
        self.router.arrive(request)
        self._next_arrival()

    def _send_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            if not self._all_sent:
                self.recorder.dry(self.events.now)
            self._all_sent = True
            return
        request.arrived = self.events.now
        self.live += 1
        self.router.arrive(request)

    # ---- between workers ----

    def _prefilled(self, request: Request) -> None:
        self.router.prefilled(request)
        if request.place is not None:
            # Sent chunk by chunk while it was computed: the last one is left.
            self._send_kv(request.place, request, min(request.prompt, self.fleet.prefill.chunk))

    def _placed(self, rank: Rank, request: Request) -> None:
        request.place = rank
        if request.prefilled == request.prefilled:
            self._send_kv(rank, request, request.prompt)

    def _send_kv(self, rank: Rank, request: Request, tokens: int) -> None:
        """One after the other from each prefill worker; latencies overlap."""
        prefill = self.router.prefill_of(request)
        latency = self.cost.transfer_s(0)
        begin = max(self.events.now, self._line_free.get(prefill.name, 0.0))
        done = begin + self.cost.transfer_s(tokens) - latency
        self._line_free[prefill.name] = done
        self.events.at(done + latency, self._arrived, prefill, rank, request)

    def _arrived(self, prefill: PrefillWorker, rank: Rank, request: Request) -> None:
        prefill.fetched(request)
        rank.group.received(rank, request)

    def _first(self, rank: Rank, request: Request) -> None:
        request.first_token = self.events.now + self.fleet.router.hop_s
        self.router.began(rank, request)

    def _ended(self, rank: Rank, request: Request) -> None:
        self.events.after(self.fleet.router.hop_s, self._gone, rank, request)

    def _gone(self, rank: Rank, request: Request) -> None:
        request.ended = self.events.now
        self.live -= 1
        self.router.ended(rank, request)
        self.recorder.end(request, self.events.now)
        if self._in_flight is not None:
            self._send_next()
        if self._all_sent and not self.live:
            self.events.stop()

    def _sample(self) -> None:
        self.recorder.sample(self.events.now)
        self.events.after(self._sample_s, self._sample)


def _waiting(fleet: Fleet, cost: CostModel) -> ShortestFirst | None:
    """Ages as prefill tokens, at the rate of full passes."""
    prefill = fleet.prefill
    if prefill.waiting_age_s is None:
        return None
    rate = prefill.chunk / cost.prefill_s([(prefill.chunk, 0)])
    return ShortestFirst(theta_tokens(prefill.waiting_age_s, rate))
