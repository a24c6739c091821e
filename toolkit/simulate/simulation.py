"""One run: a fleet, what its steps cost, and the requests that arrive."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isnan
from typing import Any

from toolkit.policies import make_policy
from toolkit.policies.early_choice import EarlyChoice
from toolkit.policies.support.expert_locality import Centroids, ExpertLocality
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.policies.support.rotation import seed_of
from toolkit.simulate.costs import links_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.drafted import drafted
from toolkit.simulate.decode import Group
from toolkit.simulate.early import AHEAD, EarlyChoices
from toolkit.simulate.events import Events
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import Fleet, Machine
from toolkit.simulate.maps import maps_of
from toolkit.simulate.movable import Movable
from toolkit.simulate.moves import SimulatedMoves
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.plain import PlainRank
from toolkit.simulate.preemption import stops
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.recorder import LatencyLimits, Recorder
from toolkit.simulate.request import Request
from toolkit.simulate.router import RouterTimes, SimulatedRouter
from toolkit.simulate.routers import SimulatedRouters
from toolkit.simulate.workers import WorkerBuilder


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
        experts: SimulatedExperts | None = None,
        seed: int = 0,
        in_flight: int | None = None,
        window: Window | None = None,
        slo: tuple[float, ...] = LatencyLimits(),
        sample_s: float = 0.1,
    ) -> None:
        self.fleet = fleet
        self.cost = cost = drafted(cost, fleet.drafting)
        self.events = events = Events()
        self.live = 0
        self._all_sent = False
        self._requests: Iterator[Request] = iter(requests)
        self._in_flight = in_flight
        self._sample_s = sample_s
        self._seed = seed
        self._line_free: dict[str, float] = {}
        neighbours = Neighbours(fleet.machine) if fleet.machine != Machine() else None
        build = WorkerBuilder(events, cost, fleet, neighbours, experts)
        self.prefills: list[PrefillWorker] = []
        self.groups: Sequence[Movable]
        self._decodes: dict[tuple[str, int], tuple[SimulatedRank, Group]] = {}
        if fleet.worker is not None:
            self.groups = build.plains(fleet.worker, self._first, self._ended)
        else:
            self.prefills = build.prefills(self._prefilled)
            self._choose_early(fleet)
            decodes = build.decodes(self._placed, self._first, self._ended)
            self._decodes = {rank.key: (rank, group) for group in decodes for rank in group.ranks}
            self.groups = decodes
        self.ranks = [rank for group in self.groups for rank in group.ranks]
        self.routers = [
            self._router(fleet, seed_of(seed, number), experts)
            for number in range(fleet.router.routers)
        ]
        self.router = self.routers[0]
        """The only one, or the first."""
        self._entry: SimulatedRouter | SimulatedRouters = self.router
        if len(self.routers) > 1:
            self._entry = SimulatedRouters(self.routers)
        self.moves: SimulatedMoves | None = None
        """None where nothing moves."""
        self._redone: dict[Request, tuple[PrefillWorker, Callable[[], None]]] = {}
        """What is computed again for those that move, and what to do when its KV has been sent."""
        if fleet.rebalance is not None:
            again = self._again if self.prefills else None
            kind, hop_s = fleet.router.moves, fleet.router.hop_s
            made = SimulatedMoves(events, cost, kind, hop_s, self._entry, self.groups, again)
            self.moves = self._entry.moves = made
        window = window or Window()
        self.recorder = Recorder(self.groups, window.since, window.until, slo, window.full)

    def _router(self, fleet: Fleet, seed: int, experts: SimulatedExperts | None) -> SimulatedRouter:
        """One of those that decide, with policies and readings of its own. The centroids are those
        of the profile, alike in all. ValueError: its policy lacks what it needs."""
        router = fleet.router
        layout = (fleet.worker or fleet.decode).layout
        prefill_policy = make_policy(router.prefill_policy, seed, "prefill")
        decode_policy = make_policy(router.decode_policy, seed, "decode", router.tau)
        if decode_policy.locality is not None:
            self._inform(decode_policy.locality, fleet, experts)
        return SimulatedRouter(
            self.events,
            self.prefills,
            self.groups,
            prefill_policy,
            decode_policy,
            RouterTimes(router.hop_s, router.report_s, router.park_timeout_s or inf),
            router.parked_per_prefill // router.routers,
            router.dispatch,
            experts,
            router.classes,
            fleet.worker is not None and stops(fleet.worker.preempt),
            layout,
            None if fleet.rebalance is None else fleet.rebalance.bounds,
        )

    def _inform(
        self, locality: ExpertLocality, fleet: Fleet, experts: SimulatedExperts | None
    ) -> None:
        """What a profile says of experts. ValueError: there is none, or nobody to ask it for."""
        name = fleet.router.decode_policy
        if fleet.worker is not None:
            raise ValueError(
                f"decode policy {name} needs prefill workers: plain ones are chosen before any "
                "expert is known"
            )
        if experts is None or experts.signatures is None:
            raise ValueError(f"decode policy {name} needs a profile's experts")
        groups = list(dict.fromkeys(rank.experts for rank in self.ranks))
        rows = experts.centroids(len(groups), self._seed)
        owner = {each: row for row, each in enumerate(groups)}
        locality.centroids = Centroids(rows, owner)
        locality.inflight_signatures = InflightSignatures(experts.signatures.shape[1])
        if fleet.decode.dp_attention:
            servers = (rank.name for rank in self.ranks)
            locality.maps = maps_of(experts, links_of(self.cost), servers, fleet.decode.dp)

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

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """Prompt tokens so far that a prefix cache had, and all of prompts that were begun."""
        queues = [worker.prompts for worker in self.prefills]
        queues += [rank.prompts for rank in self.ranks if isinstance(rank, PlainRank)]
        hits = sum(queue.hit_tokens for queue in queues)
        return hits, hits + sum(queue.computed_tokens for queue in queues)

    @property
    def move_figures(self) -> dict[str, Any]:
        """Of requests that moved; nothing where none may."""
        return self.moves.figures.result() if self.moves is not None else {}

    # ---- arrivals ----

    def _next_arrival(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self.events.at(request.arrived, self._arrive, request)
        else:
            self._all_sent = True

    def _arrive(self, request: Request) -> None:
        self.live += 1
        self._entry.arrive(request)
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
        self._entry.arrive(request)

    # ---- between workers ----

    def _choose_early(self, fleet: Fleet) -> None:
        least, loop = fleet.prefill.early_choice, fleet.prefill.loop
        if least is None or fleet.router.dispatch != "late":
            return
        rule = EarlyChoice(least, AHEAD[loop])
        for prefill in self.prefills:
            send = partial(self._send_chunk, prefill)
            prefill.early = EarlyChoices(rule, fleet.prefill.chunk, loop, self._near, send)

    def _near(self, request: Request) -> None:
        """Its prompt is nearly computed. One that moves has its rank."""
        if request not in self._redone:
            self._entry.prefilled(request)

    def _send_chunk(self, prefill: PrefillWorker, request: Request, tokens: int) -> None:
        self._on_line(prefill, tokens, lambda: None)

    def _again(self, request: Request, sent: Callable[[], None]) -> None:
        """One that moves: its prefill worker, which has its prompt, computes its answer so far."""
        prefill = self._entry.prefill_of(request)
        answer = Request(
            request.number,
            self.events.now,
            request.prompt + request.generated,
            1,
            request_class=request.request_class,
            computed=request.prompt,
        )
        self._redone[answer] = prefill, sent
        prefill.take(answer)

    def _computed_again(self, answer: Request) -> None:
        prefill, sent = self._redone.pop(answer)

        def fetched() -> None:
            prefill.fetched(answer)
            sent()

        self._on_line(prefill, min(answer.prompt, self.fleet.prefill.chunk), fetched)

    def _prefilled(self, request: Request) -> None:
        if request in self._redone:
            self._computed_again(request)
            return
        router = self.fleet.router
        if router.first_token == "prefill" and router.dispatch == "late":
            request.first_token = self.events.now + router.hop_s
        if not request.asked:
            self._entry.prefilled(request)
        if request.place is not None:
            # Sent chunk by chunk while it was computed: the last one is left.
            last = min(request.prompt, self.fleet.prefill.chunk)
            rank, _ = self._decodes[request.place]
            self._send_kv(rank, request, request.prompt - request.sent if request.asked else last)

    def _placed(self, rank: SimulatedRank, request: Request) -> None:
        request.place = rank.key
        if request.prefilled == request.prefilled:
            send = partial(self._send_kv, rank, request, request.prompt - request.sent)
            if self.fleet.prefill.early_send:
                send()
            else:
                self._entry.prefill_of(request).at_boundary(send)

    def _send_kv(self, rank: SimulatedRank, request: Request, tokens: int) -> None:
        prefill = self._entry.prefill_of(request)
        begun = self.events.now
        self._on_line(prefill, tokens, self._arrived, prefill, rank, request, tokens, begun)

    def _on_line(
        self, prefill: PrefillWorker, tokens: int, then: Callable[..., None], *given: object
    ) -> None:
        """One after the other from each prefill worker; latencies overlap."""
        latency = self.cost.transfer_s(0)
        begin = max(self.events.now, self._line_free.get(prefill.name, 0.0))
        done = begin + self.cost.transfer_s(tokens) - latency
        self._line_free[prefill.name] = done
        self.events.at(done + latency, then, *given)

    def _arrived(
        self,
        prefill: PrefillWorker,
        rank: SimulatedRank,
        request: Request,
        tokens: int,
        begun: float,
    ) -> None:
        """The last of its KV, of so many tokens, is there."""
        request.received = self.events.now
        if prefill.early is not None:
            prefill.early.pace.sent(tokens, self.events.now - begun)
        prefill.fetched(request)
        _, group = self._decodes[rank.key]
        group.received(rank, request)

    def _first(self, rank: SimulatedRank, request: Request) -> None:
        if isnan(request.first_token):
            request.first_token = self.events.now + self.fleet.router.hop_s
        self._entry.began(request)

    def _ended(self, rank: SimulatedRank, request: Request) -> None:
        self.events.after(self.fleet.router.hop_s, self._gone, rank, request)

    def _gone(self, rank: SimulatedRank, request: Request) -> None:
        request.ended = self.events.now
        self.live -= 1
        if self.moves is not None:
            self.moves.ended(request)
        self._entry.ended(request)
        self.recorder.end(request, self.events.now)
        if self._in_flight is not None:
            self._send_next()
        if self._all_sent and not self.live:
            self.events.stop()

    def _sample(self) -> None:
        self.recorder.sample(self.events.now)
        self.events.after(self._sample_s, self._sample)
