"""Drains that all routers over the same workers carry out, whichever one is told.

The router that is told has the others `try` first: each holds the worker for some seconds, or says
why it must not. If one refuses, all `let_go`; else all `keep` the order, and each empties the
worker of its own requests. A router that ends in between leaves trials that end by themselves.
Orders that are kept are handed on to routers that have not heard of them, as one that comes later,
or that hung. They are believed for the admin's proof that they carry, whoever brings them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from toolkit.contract.numbers import Text
from toolkit.decide.drain_orders import DrainOrder
from toolkit.router.emptying import EmptyingCounts
from toolkit.router.errors import ApiError
from toolkit.router.keys import OTHER_KEY, Caller, proof_of
from toolkit.router.own_name import own_name
from toolkit.router.time_limit import TimeLimit
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from toolkit.contract.notices import Notice
    from toolkit.router.drains import Drains
    from toolkit.router.keys import Keyring
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.others.exchange import NoticeExchange
    from toolkit.router.worker import Rank

log = logging.getLogger("toolkit.router")

DRAIN = "drain"
Step = Literal["try", "keep", "let_go"]
ORDERS_MAX = 128
"""In one notice."""
WAIT_S = 0.5
"""Who asks how far a router is hears it when that is done, or after so long."""
PACE_S = 0.05
"""Between two such questions, also where answers come at once."""
PATIENCE_S = 0.6
"""So long a router waits for another worker before it refuses; who asks waits ASK_S."""
SILENT_S = 3.0
"""So long a router that does not answer is asked again when all others are done."""
SETTLE_S = 0.02
"""Routers come and go at all workers, one after the other."""
AGAIN_S = (0.5, 30.0)
"""Between two tries to hand orders on to routers that do not answer: at first, and at last."""
AHEAD_S = 3600.0
"""An order from a later time is of a clock that is wrong."""
OTHER_NAMES = (
    "it gives this worker another name: let all routers' configurations give workers the same names"
)
_ADMIN = Caller(admin=True)


class DrainTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another router is to do with orders. `wait`: answer when the first one's ranks are done,
    or after WAIT_S."""

    step: Step
    orders: Annotated[tuple[DrainOrder, ...], msgspec.Meta(min_length=1, max_length=ORDERS_MAX)]
    wait: bool = False


class DrainAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`refused`: why it does not do that; `unknown`: it has no such worker; `counts`: of the first
    order's ranks."""

    refused: Text = ""
    unknown: bool = False
    counts: EmptyingCounts = EmptyingCounts()


class _Round:
    """What routers have said to an order: `silent` ones nothing that makes sense."""

    def __init__(self, silent: set[str]) -> None:
        self.silent = silent
        self.refused: dict[str, str] = {}
        self.counts: dict[str, EmptyingCounts] = {}

    @property
    def over(self) -> bool:
        """None of those that have answered does any more about it."""
        return all(each.over for each in self.counts.values())

    def sum(self, name: str) -> int:
        """Of one of the counts."""
        return sum(getattr(each, name) for each in self.counts.values())

    @property
    def stays(self) -> dict[str, int]:
        return dict(sum((Counter(each.stays) for each in self.counts.values()), Counter[str]()))

    @property
    def who(self) -> dict[str, Any]:
        """For the answer: what is left at each router, and who has not answered, or refuses;
        nothing of a router that is alone."""
        left = {name: each.left for name, each in sorted(self.counts.items())}
        return {
            **({"routers": left} if len(left) > 1 or self.silent else {}),
            **({"unanswered": sorted(self.silent)} if self.silent else {}),
            **({"refused": self.refused} if self.refused else {}),
        }


class SharedDrains(WorkerListener):
    """Gives an admin's order to all routers, and takes those that were given to others."""

    def __init__(
        self, known_workers: KnownWorkers, drains: Drains, exchange: NoticeExchange, keys: Keyring
    ) -> None:
        self._drains = drains
        self._exchange = exchange
        self._keys = keys
        self._told: dict[str, frozenset[DrainOrder]] = {}
        """The orders that another router has been told, or has told."""
        self._look = asyncio.Event()
        self._handing: asyncio.Task[None] | None = None
        exchange.give((DRAIN,), self)
        known_workers.listen(self)

    async def order(self, caller: Caller, body: Any, default_s: float) -> dict[str, Any]:
        """Carry out an admin's order about a worker, here and at all other routers, and say what
        came of it.

        Raises:
            ApiError: 400 for a wrong body, 409 for a worker that some router cannot do without:
                then none holds it for this order.
        """
        wanted = self._drains.read(body, default_s)
        order = self._drains.made(wanted)
        order = msgspec.structs.replace(order, proof=proof_of(caller, order.signed))
        if order.on:
            await self._agree(order)
        self._drains.take(order)
        if order.on:
            return await self._follow(order, wanted.ranks)
        return {"worker": order.worker, "held": False, **(await self._round(order)).who}

    async def _agree(self, order: DrainOrder) -> None:
        """All hold its ranks for a while, as far as they answer. ApiError: one cannot."""
        self._drains.attempt(order)
        try:
            told = await self._ask("try", order)
            for router, why in told.refused.items():
                raise ApiError(409, f"router {router} refuses: {why}")
        except BaseException:
            self._drains.let_go(order)
            self._exchange.tell(DRAIN, DrainTold("let_go", (order,)))
            raise

    async def _follow(self, order: DrainOrder, ranks: Sequence[Rank]) -> dict[str, Any]:
        """Until no router has anything left there, or all have given up."""
        begun = heard = monotonic()
        while True:
            told = await self._round(order)
            now = monotonic()
            heard = heard if told.silent else now
            held = all(rank.held for rank in ranks)
            if not held or (told.over and (not told.silent or now - heard > SILENT_S)):
                break
            if now - begun > order.empty_s + SILENT_S:
                break
            await asyncio.sleep(PACE_S)
        drained = held and not (told.sum("left") or told.silent or told.refused)
        return {
            "worker": order.worker, "held": held, "drained": drained,
            **{how: told.sum(how) for how in ("moved", "ended", "lost", "left")},
            "stays": told.stays, "seconds": round(monotonic() - begun, 3), **told.who,
        }  # fmt: skip

    async def _round(self, order: DrainOrder) -> _Round:
        """Have all others keep an order, and ask them and this router how far they are."""
        emptyings, ranks = self._drains.emptyings, self._drains.ranks(order.worker)
        told, _ = await asyncio.gather(
            self._ask("keep", order, wait=order.empty_s > 0), emptyings.over(ranks, WAIT_S)
        )
        self._hand_on()
        told.counts[own_name()] = emptyings.counts(ranks)
        return told

    async def _ask(self, step: Step, order: DrainOrder, wait: bool = False) -> _Round:
        """What all others say to an order."""
        answers, silent = await self._exchange.ask(
            DRAIN, DrainTold(step, (order,), wait), DrainAnswer
        )
        (rank, *_) = self._drains.ranks(order.worker)
        told = _Round(silent)
        for router, answer in answers.items():
            told.counts[router] = answer.counts
            if answer.refused:
                told.refused[router] = answer.refused
            elif answer.unknown and router in rank.worker.other_routers:
                told.refused[router] = OTHER_NAMES
            if step == "keep":
                self._knows(router, (order,))
        return told

    # ---- what other routers say ----

    async def take_notice(self, notice: Notice) -> DrainAnswer | None:
        told = msgspec.json.decode(notice.body, type=DrainTold)
        first, ranks = told.orders[0], self._drains.ranks(told.orders[0].worker)
        match told.step:
            case "let_go":
                self._drains.let_go(first)
                return None
            case "try":
                refused = await self._tried(first)
            case "keep":
                reasons = [self._kept(order, notice.sender) for order in told.orders]
                refused = next(filter(None, reasons), "")
                self._knows(notice.sender, told.orders)
                self._hand_on()
                if told.wait:
                    await self._drains.emptyings.over(ranks, WAIT_S)
        return DrainAnswer(refused, not ranks, self._drains.emptyings.counts(ranks))

    def _why_not(self, order: DrainOrder) -> str:
        """Why nobody must obey this; empty: one may."""
        if not self._keys.vouched(_ADMIN, order.signed, order.proof):
            return OTHER_KEY
        if order.at > (time() + AHEAD_S) * 1e3:
            return "the clock there is more than an hour ahead of the one here"
        return ""

    async def _tried(self, order: DrainOrder) -> str:
        """Why not; empty: it is held for a while. Another worker may be coming back."""
        why, since = self._why_not(order), monotonic()
        while not why:
            try:
                self._drains.attempt(order, elsewhere=True)
                break
            except ApiError as error:
                if monotonic() - since > PATIENCE_S:
                    return error.message
            await asyncio.sleep(PACE_S)
        return why

    def _kept(self, order: DrainOrder, sender: str) -> str:
        """Why not; empty: it is carried out."""
        why, what = self._why_not(order), "drained" if order.on else "used again"
        if why:
            log.warning("router %s says that %s is %s: %s", sender, order.worker, what, why)
        elif self._drains.take(order):
            log.info("worker %s is %s: router %s says so", order.worker, what, sender)
        return why

    # ---- routers that have not heard of it ----

    def routers_changed(self) -> None:
        self._hand_on()

    def health_changed(self, worker: str) -> None:
        self._hand_on()  # only through those that are up others are heard of

    async def stop(self) -> None:
        """Hand on, and empty, nothing any more."""
        self._drains.stop()
        if self._handing is not None:
            self._handing.cancel()
            await asyncio.gather(self._handing, return_exceptions=True)

    def _knows(self, router: str, orders: Iterable[DrainOrder]) -> None:
        """That router has heard of these; of no interest are those that do not hold here."""
        known = self._told.get(router, frozenset()).union(orders)
        self._told[router] = known.intersection(self._drains.orders.all)

    def _unaware(self) -> list[str]:
        """Routers that may not have heard of all orders."""
        orders = frozenset(self._drains.orders.all)
        if not orders:
            return []
        others = self._exchange.others
        self._told = {each: told & orders for each, told in self._told.items() if each in others}
        return [each for each in others if self._told.get(each, frozenset()) < orders]

    def _hand_on(self) -> None:
        """Have all others know all orders."""
        self._look.set()
        if (self._handing is None or self._handing.done()) and self._unaware():
            self._handing = asyncio.get_running_loop().create_task(self._hand_all_on())

    async def _hand_all_on(self) -> None:
        """Until there is none that has not heard of them."""
        pause_s = AGAIN_S[0]
        while True:
            self._look.clear()
            await asyncio.sleep(SETTLE_S)
            unaware = self._unaware()
            if not unaware:
                return
            orders = self._drains.orders.all
            heard = await asyncio.gather(*(self._hand(each, orders) for each in unaware))
            pause_s = AGAIN_S[0] if any(heard) else min(2 * pause_s, AGAIN_S[1])
            if not all(heard):
                with suppress(TimeoutError):
                    async with TimeLimit(pause_s):
                        await self._look.wait()

    async def _hand(self, router: str, orders: Sequence[DrainOrder]) -> bool:
        """Tell a router these orders. Whether it has answered."""
        for begin in range(0, len(orders), ORDERS_MAX):
            some = tuple(orders[begin : begin + ORDERS_MAX])
            answers, _ = await self._exchange.ask(
                DRAIN, DrainTold("keep", some), DrainAnswer, router
            )
            if router not in answers:
                return False
            self._knows(router, some)
        return True
