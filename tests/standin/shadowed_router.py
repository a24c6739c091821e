"""The router, with a second decider that is told the same messages and nothing else:
`python -m tests.standin.shadowed_router CONFIG.json`.

Each order of the router's decider is compared with what the second one says, and so is the time at
which it wants to hear the time. Whatever changes the router's decider without a message shows up as
a difference. At its end it writes how many messages and orders there were, and the first
difference, as JSON into the file `$ROUTER_SHADOW`.
"""

from __future__ import annotations

import json
import os
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import structs

from toolkit.decide import messages as m
from toolkit.decide.decider import Decider
from toolkit.decide.ranks import KnownRanks, RankState, WorkerState
from toolkit.decide.reservation import Reservation
from toolkit.policies import make_policy
from toolkit.policies.base import Policy
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.router.channel import Channel


class Shadow:
    """The second decider of `first`."""

    def __init__(self, first: Decider, began: float) -> None:
        stages = first.choosing.stages
        workers = [WorkerState(w.spec, w.ranks[0].bounds) for w in first.ranks.workers.values()]
        self.decider = Decider(
            KnownRanks(workers, began),
            first.bounds,
            None if stages is None else StageFilter(stages.layout),
        )
        self.reservations: dict[Reservation, Reservation] = {}
        self.messages: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()
        self.differences: list[str] = []
        self._decide = first.on
        self._first = first

    def on(self, message: m.Message, now: float) -> list[m.Order]:
        """Both decide; the first one's orders count. After a difference the first one goes on
        alone: the second one knows other reservations."""
        if self.differences:
            return self._decide(message, now)
        theirs = self._translated(message)
        orders = self._decide(message, now)
        own = self.decider.on(theirs, now)
        self.messages[type(message).__name__] += 1
        for one, other in zip(orders, own, strict=False):
            self.orders[type(one).__name__] += 1
            theirs_call, own_call = _place(one), _place(other)
            if theirs_call is not None and own_call is not None:
                self.reservations[theirs_call] = own_call
        words, mine = list(map(_words, orders)), list(map(_words, own))
        if words != mine:
            self.differences.append(f"{type(message).__name__} at {now}: {words}, not {mine}")
        if self._first.due != self.decider.due:
            dues = f"{self._first.due}, not {self.decider.due}"
            self.differences.append(f"{type(message).__name__} at {now}: due {dues}")
        if isinstance(message, m.CallReleased):
            self.reservations.pop(message.reservation, None)
        return orders

    def _translated(self, message: m.Message) -> m.Message:
        """With its own reservations, and a policy of its own."""
        match message:
            case m.UsePolicy():
                return m.UsePolicy(message.side, _fresh(message.policy, message.side))
            case m.TokensCame():
                known = self.reservations
                return m.TokensCame(tuple((known[call], n) for call, n in message.tokens))
        changed = {
            name: self.reservations[value]
            for name, value in structs.asdict(message).items()
            if isinstance(value, Reservation)
        }
        return structs.replace(message, **changed) if changed else message


def _fresh(policy: Policy, side: str) -> Policy:
    """Another one of the name, as it begins; the tests leave seed and tau as they are."""
    made = make_policy(policy.name, 0, side)
    if made.locality is not None and policy.locality is not None:
        theirs = policy.locality
        made.locality.centroids, made.locality.maps = theirs.centroids, theirs.maps
        if theirs.inflight_signatures is not None:
            dimensions = theirs.inflight_signatures.dimensions
            made.locality.inflight_signatures = InflightSignatures(dimensions)
    return made


def _place(order: m.Order) -> Reservation | None:
    match order:
        case m.PrefillOrder() | m.DecodeOrder() | m.MoveOrder():
            return order.reservation
        case _:
            return None


def _words(order: m.Order) -> str:
    """An order without its objects."""
    shown = {}
    for name, value in structs.asdict(order).items():
        if isinstance(value, RankState):
            shown[name] = value.name
        elif not isinstance(value, Reservation | Exception):
            shown[name] = str(value)
    return f"{type(order).__name__} {shown}"


def main() -> None:
    shadows: list[Shadow] = []
    begin: Any = Channel.begin

    def begun(self: Channel, decider: Decider, *others: Any) -> None:
        # As the workers' states were made: when the role was without workers is part of them.
        began = min((at for at in map(decider.ranks.gone_at, decider.ranks.roles) if at), default=0)
        shadow = Shadow(decider, began)
        shadows.append(shadow)
        decider.on = shadow.on  # type: ignore[method-assign]
        begin(self, decider, *others)

    Channel.begin = begun  # type: ignore[method-assign,assignment]
    try:
        runpy.run_module("toolkit.router", run_name="__main__", alter_sys=True)
    finally:
        (shadow,) = shadows
        left = {
            rank.name: rank.inflight
            for worker in shadow.decider.ranks.workers.values()
            for rank in worker.ranks
        }
        found = {
            "messages": shadow.messages,
            "orders": shadow.orders,
            "differences": shadow.differences,
            "left": left,
        }
        Path(os.environ["ROUTER_SHADOW"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
