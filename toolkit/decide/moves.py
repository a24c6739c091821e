"""Which running requests go on on another rank: by stages and load, to empty a rank, as asked.

A host answers `Look` with `RunningSeen`: what runs, how far it is, and what cannot go on elsewhere.
What is then to move it hears as `MoveOrder`, each with a place that is kept on the target, and
answers with `MoveEnded`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from toolkit.decide import messages as m
from toolkit.decide.rebalancing import Rebalancing
from toolkit.decide.targets import Targets, room_of
from toolkit.policies.stages.running import RunningRequest

if TYPE_CHECKING:
    from toolkit.decide.bounds import DeciderBounds
    from toolkit.decide.choosing import Chooser
    from toolkit.decide.ranks import RankState
    from toolkit.decide.requests import RequestState
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.base import RequestView
    from toolkit.policies.stages.running import Why

AT_A_TIME = 3
"""Moves of one rank, those that leave it and those that come to it counted apart (CascadeInfer,
section 5)."""
AGAIN_S = 2.0
"""A request that could not be moved after all is left alone for so long."""
EMPTY_AGAIN_S = 0.25
"""The same while its rank is to be empty."""
EMPTY_LOOK_S = 0.02
"""So often a rank that is to be empty is looked at: what is not to move yet may be soon."""
PARTS = 20
"""Passes take at most one part in so many of the host's time: with thousands of requests one takes
some milliseconds, and moves may end at any rate."""


class _Ask(NamedTuple):
    """Somebody wants a request moved. `number` of who asked, 0 for nobody who waits. `targets`:
    None where the policy chooses."""

    number: int
    request: int
    source: RankState
    targets: tuple[RankState, ...] | None
    why: Why


@dataclass(slots=True)
class _UnderWay:
    """A move that the host carries out. `length`: KV tokens, when it was ordered."""

    ask: _Ask
    target: RankState
    length: int
    since: float
    place: Reservation


class MoveDecider:
    """Whom the host is to move. `orders` are those that followed since they were taken."""

    def __init__(
        self, choosing: Chooser, requests: Mapping[int, RequestState], bounds: DeciderBounds
    ) -> None:
        self._choosing = choosing
        self._requests = requests
        self._targets = Targets(choosing, bounds.eject_share)
        self.rebalancing: Rebalancing | None = None
        """None where nothing moves but what is asked for."""
        if bounds.moves is not None:
            ranks = choosing.ranks
            decodes = ranks.of("decode" if ranks.splits else "plain")
            self.rebalancing = Rebalancing(decodes, bounds.moves, choosing.stages)
        self.under_way: dict[int, _UnderWay] = {}
        """By request."""
        self.pass_s = 0.0
        """What the host needed for the last look, and for what followed from it."""
        self.orders: list[m.Order] = []
        self._asks: list[_Ask] = []
        self._seen: dict[int, m.SeenRequest] = {}
        self._emptied: dict[RankState, None] = {}
        self._kept_as: dict[int, str] = {}
        """Why requests could not be moved the last time."""
        self.emptied: defaultdict[RankState, Counter[str]] = defaultdict(Counter)
        """By source, how moves of ranks that are to be empty ended."""
        self._rests: dict[int, float] = {}
        self._pass_at: float | None = None
        """When the next pass is due."""
        self._empty_at: float | None = None
        """When ranks that are to be empty are looked at."""
        self._passes = False
        """Whether what is seen next is for a pass."""
        self._ticked = False
        """Whether it looked when the time was told last."""

    @property
    def due(self) -> float | None:
        """When it wants to look; None: not before something happens."""
        if self._pass_at is None or self._empty_at is None:
            return self._empty_at if self._pass_at is None else self._pass_at
        return min(self._pass_at, self._empty_at)

    def begin(self, now: float) -> None:
        """A worker is there: passes begin."""
        if self.rebalancing is not None and self._pass_at is None:
            self._pass_at = now + self.rebalancing.bounds.every_s

    def tick(self, took_s: float, now: float) -> None:
        """Time has passed. `took_s`: what the host needed the last time."""
        if self._ticked:
            self.pass_s, self._ticked = took_s, False
        due = self.due
        if due is not None and due <= now:
            self._ticked = True
            self._look(now)

    def asked(self, message: m.MoveAsked, now: float) -> None:
        """Somebody wants a request moved."""
        seen = message.request
        self._seen[seen.request] = seen
        source = self._rank_of(seen.request)
        if source is None:
            reason = seen.stays or "it runs nowhere now"
            self.orders.append(m.MoveKept(seen.request, message.ask, "asked", reason))
            return
        known, keys = self._choosing.ranks, message.targets
        targets = None if keys is None else tuple(known.rank(key) for key in keys)
        self._asks.append(_Ask(message.ask, seen.request, source, targets, "asked"))
        self._begin_asked(now)

    def empty(self, message: m.Empty, now: float) -> None:
        """Ranks are to be empty, or need not be any more."""
        for key in message.ranks:
            rank = self._choosing.ranks.rank(key)
            if message.on:
                self._emptied[rank] = None
            else:
                self._emptied.pop(rank, None)
        if message.on:
            self._look(now)
        else:
            asks, emptied = self._asks, self._emptied
            self._asks = [ask for ask in asks if ask.why != "drain" or ask.source in emptied]
            self._empty_at = self._empty_at if emptied else None

    def seen(self, message: m.RunningSeen, now: float) -> None:
        """What runs: move what is to move."""
        self._seen = {each.request: each for each in message.requests}
        self._rests = {number: until for number, until in self._rests.items() if until > now}
        if self._emptied:
            self._ask_to_empty()
        if self._passes:
            self._passes = False
            self._run_pass(now)
        self._begin_asked(now)

    def planned(self, message: m.StagesPlanned, now: float) -> None:
        """Other stages are better."""
        if self.rebalancing is not None:
            self.rebalancing.adopt(message.layout)
            self.orders.append(m.Restaged(message.layout))

    def ended(self, message: m.MoveEnded, now: float) -> None:
        """A move is over, or is to be made in another way (`again`)."""
        move = self.under_way.pop(message.request, None)
        if move is None:
            return
        if message.again:
            self._go_on(move, message, now)
            return
        if move.ask.why == "drain":
            self.emptied[move.ask.source][message.how] += 1
        request, how = self._requests.get(message.request), message.how
        if how == "moved":
            rank = self._choosing.ranks.rank(message.rank) if message.rank else move.target
            rank.moved_in += 1
            if request is not None:
                request.calls = [call for call in request.calls if not call.over]
                if not move.place.over and move.place not in request.calls:
                    request.calls.append(move.place)
        else:
            self._rest(move.ask, message.reason, now)
        rebalancing = self.rebalancing
        if rebalancing is not None:
            if move.ask.why not in ("asked", "drain"):
                if how == "moved":
                    rebalancing.moved(message.stall_s, message.tokens, now - move.since)
                else:
                    rebalancing.refused[how] += 1
            if self._pass_at is not None:
                soon = max(rebalancing.bounds.soon_s, PARTS * self.pass_s)
                self._pass_at = min(self._pass_at, now + soon)
        self._begin_asked(now)

    def rejoined(self, number: int, move: m.RejoinedMove, now: float) -> None:
        """A request has rejoined that is being moved."""
        request = self._requests[number]
        place = request.calls[move.call]
        others = [call for call in request.calls if call is not place]
        sources = [call.rank for call in others if call.rank.worker.spec.role != "prefill"]
        if sources:
            ask = _Ask(move.ask, number, sources[-1], None, move.why)
            length = request.view.prompt_tokens
            self._seen[number] = m.SeenRequest(number, request.generated, "it is being moved")
            self.under_way[number] = _UnderWay(ask, place.rank, length, now, place)

    def over(self, request: int, now: float) -> None:
        """A request has ended. What became of its move the host may say later."""
        self._seen.pop(request, None)
        self._rests.pop(request, None)
        self._kept_as.pop(request, None)
        if any(ask.request == request for ask in self._asks):
            self._begin_asked(now)

    # ---- what is to move ----

    def _look(self, now: float) -> None:
        """Have the host say what runs. The next look does not wait for that."""
        self.orders.append(m.Look())
        least_s = PARTS * self.pass_s
        self._empty_at = now + max(EMPTY_LOOK_S, least_s) if self._emptied else None
        if self.rebalancing is not None and self._pass_at is not None and self._pass_at <= now:
            self._passes = True
            self._pass_at = now + max(self.rebalancing.bounds.every_s, least_s)

    def _ask_to_empty(self) -> None:
        left_alone = {ask.request for ask in self._asks} | self.under_way.keys()
        left_alone |= self._rests.keys()
        for number, seen in self._seen.items():
            source = self._rank_of(number)
            if source is None or source not in self._emptied:
                continue
            if not seen.stays and number not in left_alone:
                self._asks.append(_Ask(0, number, source, None, "drain"))

    def _run_pass(self, now: float) -> None:
        rebalancing = self.rebalancing
        assert rebalancing is not None
        running: defaultdict[RankState, list[RunningRequest]] = defaultdict(list)
        coming: Counter[RankState] = Counter()
        moving: Counter[RankState] = Counter()
        for number, seen in self._seen.items():
            request, rank = self._requests.get(number), self._rank_of(number)
            if request is not None and rank is not None:
                running[rank].append(self._running(request, rank, seen))
        for number, move in self.under_way.items():
            coming[move.target] += self._length(number) or move.length
            moving.update((move.ask.source, move.target))
        layout = rebalancing.refine(running, now)
        if layout is not None:
            self.orders.append(m.Restaged(layout))
        now_is, planner = rebalancing.plans(now), rebalancing.replanner
        if now_is is not None and planner is not None:
            live = tuple((e.prompt, e.length) for held in running.values() for e in held)
            self.orders.append(m.PlanStages(planner, live, now_is, rebalancing.price_s))
        for number, source, target, why in rebalancing.run_pass(running, coming, moving, now):
            self._begin(_Ask(0, number, source, (target,), why), target, 0, now)

    def _running(
        self, request: RequestState, rank: RankState, seen: m.SeenRequest
    ) -> RunningRequest:
        number, view = request.number, request.view
        moving = number in self.under_way
        prompt = request.prompt
        most = view.max_new_tokens
        certain = most and view.min_new_tokens >= most
        return RunningRequest(
            request=number,
            length=prompt + seen.generated,
            movable=not (moving or rank.held or number in self._rests or seen.stays),
            moving=moving,
            prompt=prompt,
            left=max(0, most - seen.generated) if certain else None,
        )

    def _begin_asked(self, now: float) -> None:
        """Those whose turn it is."""
        asks, self._asks = self._asks, []
        for ask in asks:
            if not self._try(ask, now):
                self._asks.append(ask)

    def _try(self, ask: _Ask, now: float) -> bool:
        """False: it waits, since three are under way."""
        reason = self._why_not(ask)
        if reason is not None:
            self._kept(ask, reason, now)
            return True
        if self._count(ask.source, leaving=True) >= AT_A_TIME:
            return False
        view = self._view(ask.request)
        if ask.targets is None:
            chosen = self._targets.choose(ask.source, replace(view, now=now), now)
        else:
            chosen = self._targets.best(ask.source, ask.targets, view, now)
        if isinstance(chosen, str):
            self._kept(ask, chosen, now)
            return True
        if self._count(chosen, leaving=False) >= AT_A_TIME:
            return False
        self._begin(ask, chosen, 0, now)
        return True

    def _why_not(self, ask: _Ask) -> str | None:
        if ask.request not in self._requests:
            return "it came to its end first"
        if self._rank_of(ask.request) is not ask.source:
            return f"it is not on {ask.source.name} any more"
        if ask.request in self.under_way:
            return "it is being moved"
        seen = self._seen.get(ask.request)
        return "it came to its end first" if seen is None else seen.stays or None

    def _go_on(self, move: _UnderWay, message: m.MoveEnded, now: float) -> None:
        """The same move, in the host's next way."""
        ask, target = move.ask, move.target
        seen = self._seen.get(ask.request, m.SeenRequest(ask.request, 0, ""))
        generated = max(seen.generated, message.generated)
        self._seen[ask.request] = m.SeenRequest(ask.request, generated, "")
        reason = self._why_not(ask)
        if reason is None:
            reason = self._targets.why_not(ask.source, target, self._view(ask.request), now)
        if reason is None:
            self._begin(ask, target, message.again, now)
        else:
            self._kept(ask, reason, now)

    def _begin(self, ask: _Ask, target: RankState, way: int, now: float) -> None:
        view = self._view(ask.request)
        generated = self._seen[ask.request].generated
        place = self._choosing.reserve(target, view, now, streams=True, generated=generated)
        self.under_way[ask.request] = _UnderWay(ask, target, view.prompt_tokens, now, place)
        room = room_of(target, now)
        self.orders.append(m.MoveOrder(ask.request, target, place, ask.why, ask.number, way, room))

    def _kept(self, ask: _Ask, reason: str, now: float) -> None:
        self._rest(ask, reason, now)
        ended = ask.request not in self._requests
        self.orders.append(m.MoveKept(ask.request, ask.number, ask.why, reason, ended))

    def _rest(self, ask: _Ask, reason: str, now: float) -> None:
        """It is left alone for a while; but whoever asks for it is heard."""
        if ask.request in self._requests:
            self._kept_as[ask.request] = reason
        if ask.why != "asked" and ask.request in self._requests:
            self._rests[ask.request] = now + (EMPTY_AGAIN_S if ask.why == "drain" else AGAIN_S)

    # ---- what is known of a request ----

    def leaving(self, rank: RankState) -> int:
        """Moves away from the rank that are under way."""
        return self._count(rank, leaving=True)

    def stays(self, rank: RankState) -> Counter[str]:
        """Why the requests that are on the rank are still there."""
        reasons: Counter[str] = Counter()
        for number, request in self._requests.items():
            if any(not call.over and call.rank is rank for call in request.calls):
                seen, kept = self._seen.get(number), self._kept_as.get(number)
                reasons[(seen and seen.stays) or kept or "there was no time"] += 1
        return reasons

    def _rank_of(self, number: int) -> RankState | None:
        request = self._requests.get(number)
        call = None if request is None else request.decode
        return None if call is None else call.rank

    def _length(self, number: int) -> int:
        """KV tokens as they were seen last; 0 for one that is gone."""
        request, seen = self._requests.get(number), self._seen.get(number)
        return 0 if request is None or seen is None else request.prompt + seen.generated

    def _view(self, number: int) -> RequestView:
        """As a rank is to see it that it moves to: all that it has is prompt."""
        return replace(self._requests[number].view, prompt_tokens=self._length(number))

    def _count(self, rank: RankState, leaving: bool) -> int:
        moves: Sequence[_UnderWay] = list(self.under_way.values())
        return sum((each.ask.source if leaving else each.target) is rank for each in moves)
