"""Who is to move where: CascadeInfer's bid-ask, and rebalancing without stages."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolkit.policies.stages.auction import Account, Quality, gain_s, winner
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.levelling import offers, uneven
from toolkit.policies.stages.running import Instance, PlannedMove, RunningRequest, Why

__all__ = [
    "Instance",
    "Knobs",
    "Layout",
    "MoveCounters",
    "Mover",
    "PlannedMove",
    "RunningRequest",
    "Why",
]


@dataclass(frozen=True, slots=True)
class Knobs:
    """`over`: an instance asks when it holds so much more than its stage's mean, as a share; `band`
    the same without stages. `at_once`: moves at a time from and to an instance. `reserve`: KV
    tokens that stay free at a target beside the request; an instance with less free hands on.
    `wait_limit`: a request that asked in so many passes in vain goes first. `least`: requests with
    fewer expected tokens left (where known, else of fewer KV tokens) do not move for their load.
    `rest`: for so many passes a request does not go back whence it came for its load. `horizon`:
    output tokens over which a move has to pay where `RunningRequest.left` does not say. `checked`:
    the reasons for which a move has to pay. ValueError: one that cannot be."""

    over: float = 0.25
    band: float = 0.05
    at_once: int = 3
    reserve: int = 512
    wait_limit: int = 4
    least: int = 0
    rest: int = 20
    horizon: int = 128
    checked: frozenset[Why] = frozenset({"overload", "level"})

    def __post_init__(self) -> None:
        for name in ("over", "band"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("at_once", "wait_limit", "horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("reserve", "least", "rest"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")


@dataclass
class MoveCounters:
    """`moves` by reason. `passed`: asks in vain, by what was missing: "busy" (source or targets
    move as many as they may), "no_room" (free KV or a slot), "no_gain"."""

    moves: Counter[Why] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)


class _Ask(NamedTuple):
    source: Account
    place: int
    request: RunningRequest
    why: Why


class Mover:
    """`decide(instances) -> moves`, once a pass (every 0.25 s or so, and when a move has ended).

    Who asks, in this order:

    1. kv_limit: an instance with less than `reserve` KV tokens free offers its largest request to
       the instance with the most free KV, rather than let the engine retract one;
    2. outgrown: a request longer than its stage's range, to its length's stage (or, while nobody
       there may get any, to the nearest one after its own);
    3. overload: an instance that holds more than (1 + `over`) x its stage's mean, its largest
       requests that bring it no further down than to the mean, else the smallest, inside the stage.

    Asks of the second and third kind go by the load of who asks, heaviest first. A request that
    asked in vain in `wait_limit` passes goes before all others. Targets are chosen by `winner`;
    none is held, at `at_once` moves, or without a slot and `length + reserve` free KV.

    A move for load (overload, level) has to lower the larger load of the two, and must not make an
    asker of the target. With `quality` (Q^B, seconds by output token, summed over a batch) it has
    to win more by it over the tokens left than `cost_s(length)`, its price in seconds, as well.

    Without a layout all instances are one stage, with `level` in the place of overload: those above
    (1 + `band`) x the mean hand on, as STAR's do, and those above the mean fill others up that are
    below (1 - `band`) x (*ours*: what ends leaves holes). The lightest instance with room gets it.

    State: who asked in vain, and who came from where lately. Degraded: a held instance is in no
    mean; without `tokens_per_s` one with anything on its way starts last. Source: CascadeInfer,
    section 4.4, with all bids on one table; kv_limit and the rule about askers are *ours*.
    """

    def __init__(
        self,
        layout: Layout | None = None,
        knobs: Knobs | None = None,
        cost_s: Callable[[int], float] | None = None,
        quality: Quality | None = None,
    ) -> None:
        self.layout = layout
        self.knobs = knobs or Knobs()
        self.counters = MoveCounters()
        self._cost_s = cost_s
        self._quality = quality
        self._vain: dict[Hashable, int] = {}
        self._came: dict[Hashable, tuple[int, int]] = {}
        self._pass_number = 0

    def decide(self, instances: Sequence[Instance]) -> list[PlannedMove]:
        """One pass. Moves in the order in which they were agreed; each is to be begun at once, or
        else its request asks again. ValueError: a stage that the layout does not have, or a rank
        twice."""
        self._check(instances)
        self._pass_number += 1
        self._came = {
            request: (source, number)
            for request, (source, number) in self._came.items()
            if self._pass_number - number <= self.knobs.rest
        }
        auction = [Account(place, instance) for place, instance in enumerate(instances)]
        moves: list[PlannedMove] = []
        vain: dict[Hashable, int] = {}
        for ask in self._in_order(self._asks(auction)):
            missing = self._agree(auction, ask, moves)
            if missing is not None:
                self.counters.passed[missing] += 1
                vain[ask.request.request] = self._vain.get(ask.request.request, 0) + 1
        self._vain = vain
        self.counters.moves.update(move.why for move in moves)
        return moves

    def _check(self, instances: Sequence[Instance]) -> None:
        if len({each.rank for each in instances}) < len(instances):
            raise ValueError("a rank stands twice among the instances")
        count = len(self.layout.stages) if self.layout else 1
        for each in instances:
            if self.layout is not None and not 0 <= each.stage < count:
                raise ValueError(
                    f"instance {each.rank} is of stage {each.stage}; there are {count}"
                )

    def _asks(self, auction: Sequence[Account]) -> Iterator[_Ask]:
        for account in auction:
            asked: set[int] = set()
            if account.spare < self.knobs.reserve:
                largest = max(account.movable(), key=lambda e: e[1].length, default=None)
                if largest is not None:
                    asked.add(largest[0])
                    yield _Ask(account, *largest, "kv_limit")
            outgrown = [] if self.layout is None else list(self._outgrown(self.layout, account))
            for place, request in outgrown:
                if place not in asked:
                    asked.add(place)
                    yield _Ask(account, place, request, "outgrown")
            for place, request in self._too_much(auction, account, asked):
                yield _Ask(account, place, request, "overload" if self.layout else "level")

    def _outgrown(self, layout: Layout, account: Account) -> Iterator[tuple[int, RunningRequest]]:
        upto = layout.stages[account.instance.stage].upto
        if upto is not None:
            yield from ((i, each) for i, each in account.movable() if each.length > upto)

    def _too_much(
        self, auction: Sequence[Account], account: Account, asked: set[int]
    ) -> list[tuple[int, RunningRequest]]:
        """What an instance offers for its load: as many as it may move, largest first."""
        mean, knobs = self._mean(auction, account), self.knobs
        if account.load <= mean * (1 + (knobs.over if self.layout else 0.0)):
            return []
        movable = [e for e in account.movable() if e[0] not in asked and self._worth(e[1])]
        if self.layout is None:
            return offers(auction, account, movable, knobs.band, knobs.at_once)
        left = sorted(movable, key=lambda e: -e[1].length)
        excess = account.load - mean
        offered: list[tuple[int, RunningRequest]] = []
        for place, request in left:
            if request.length <= excess and len(offered) < self.knobs.at_once:
                offered.append((place, request))
                excess -= request.length
        return offered or left[-1:]

    def _worth(self, request: RunningRequest) -> bool:
        size = request.length if request.left is None else request.left
        return size >= self.knobs.least

    def _stage(self, account: Account) -> int:
        return account.instance.stage if self.layout else 0

    def _mean(self, auction: Iterable[Account], account: Account) -> float:
        """KV tokens of an instance of its stage, of those that get requests; its own if none."""
        loads = [b.load for b in auction if b.open and self._stage(b) == self._stage(account)]
        return sum(loads) / len(loads) if loads else float(account.load)

    def _in_order(self, asks: Iterable[_Ask]) -> list[_Ask]:
        def order(ask: _Ask) -> tuple[int, bool, int, int]:
            vain = self._vain.get(ask.request.request, 0)
            starved = vain if vain >= self.knobs.wait_limit else 0
            return -starved, ask.why != "kv_limit", -ask.source.load, -ask.request.length

        return sorted(asks, key=order)

    def _agree(self, auction: Sequence[Account], ask: _Ask, moves: list[PlannedMove]) -> str | None:
        """Make a move of an ask, or say what was missing."""
        source, place, request, why = ask
        if source.moving >= self.knobs.at_once:
            return "busy"
        among = [account for account in self._receivers(auction, ask) if account is not source]
        free = [account for account in among if account.moving < self.knobs.at_once]
        bids = [account for account in free if account.fits(request.length, self.knobs.reserve)]
        if not bids:
            return "busy" if len(free) < len(among) else "no_room"
        if why == "kv_limit":
            target = max(bids, key=lambda account: (account.free, -account.place))
        elif why == "level":
            target = min(bids, key=lambda account: (account.load, account.place))
        else:
            target = winner(bids)
        if why in ("overload", "level") and not self._evens(auction, ask, target):
            return "no_gain"
        if not self._pays(ask, target):
            return "no_gain"
        source.give(place)
        target.take(request)
        if why != "kv_limit":
            self._came[request.request] = source.instance.rank, self._pass_number
        moves.append(PlannedMove(request.request, source.instance.rank, target.instance.rank, why))
        return None

    def _receivers(self, auction: Sequence[Account], ask: _Ask) -> list[Account]:
        """Those of the stage that is to have it; of the nearest where nobody there can."""
        source, _, request, why = ask
        before = self._came.get(request.request, (None, 0))[0]
        among = [account for account in auction if account.open and account is not source]
        if why != "kv_limit" and before is not None:
            among = [account for account in among if account.instance.rank != before]
        if self.layout is None:
            return among
        own = self._stage(source)
        if why == "overload":
            return [account for account in among if self._stage(account) == own]
        stages = self.layout.nearest(self.layout.stage_of(request.length))
        if why == "outgrown":
            stages = [stage for stage in stages if stage > own]
        else:
            among = [
                account for account in among if account.fits(request.length, self.knobs.reserve)
            ]
        for stage in stages:
            found = [account for account in among if self._stage(account) == stage]
            if found:
                return found
        return []

    def _evens(self, auction: Sequence[Account], ask: _Ask, target: Account) -> bool:
        """Whether a move for load lowers the larger of the two, makes no asker of the target, and
        is still called for after what this pass has agreed already."""
        source, _, request, why = ask
        after = target.load + request.length
        if after >= source.load:
            return False
        mean, knobs = self._mean(auction, source), self.knobs
        if why == "level":
            asks = uneven(source.load, target.load, mean, knobs.band)
            return asks and after <= mean * (1 + knobs.band)
        threshold = mean * (1 + knobs.over)
        return after <= threshold < source.load

    def _pays(self, ask: _Ask, target: Account) -> bool:
        """By the QoE model, where there is one."""
        source, place, request, why = ask
        if self._quality is None or why not in self.knobs.checked:
            return True
        tokens = self.knobs.horizon if request.left is None else request.left
        cost = self._cost_s(request.length) if self._cost_s else 0.0
        return tokens * gain_s(self._quality, source, target, place) > cost
