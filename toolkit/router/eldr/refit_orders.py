"""Orders to refit, given at any of several routers and carried out by the one that fits.

A refit takes longer than another router's answer may. So the order is asked about by its id until
it is over: each answer is a sign of life, and a notice that gets lost is sent again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from toolkit.contract.notices import Word
from toolkit.contract.numbers import Text
from toolkit.router.eldr.drift_refits import FittedElsewhere, TooFew
from toolkit.router.eldr.refits import TIMEOUT_S, RefitError
from toolkit.router.errors import ApiError
from toolkit.router.keys import Caller
from toolkit.router.own_name import own_name

if TYPE_CHECKING:
    from toolkit.contract.notices import Notice
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.eldr.shared_centroids import SharedCentroids
    from toolkit.router.keys import Keyring
    from toolkit.router.others.exchange import NoticeExchange

REFIT = "refit"
RUNNING: Final = 202
LOOK_S = 0.5
"""So long an answer waits for the end of the refit: well below what others wait for an answer."""
TRIES = 3
"""Unanswered ones, one after the other, after which a router is silent."""
WAIT_S = 2 * TIMEOUT_S
"""A refit's two processes take no longer."""
RETRY_S = 5
"""By then another router fits."""
ORDERS_MAX = 16
"""Of other routers, that are kept; of those that are over the oldest goes first."""
MESSAGE_MAX = 1000


class RefitAsked(msgspec.Struct, frozen=True):
    """An order of the admin. `begun`: it has been answered before; who does not know it then has
    lost it."""

    order: Word
    force: bool
    begun: bool = False


class RefitAnswer(msgspec.Struct, frozen=True):
    """As the client gets it: its HTTP status and why it is no 200, or what came of the refit.
    RUNNING: it is not over."""

    status: Literal[200, 202, 403, 409, 500, 503]
    message: Text = ""
    told: dict[str, Any] = {}


class RefitOrders:
    """Carries orders out where this router fits, and has the fitting router do it elsewhere.

    That one believes only a proof made with the admin key, as of orders to abort
    (`toolkit.router.others.requests`)."""

    def __init__(
        self,
        locality: Locality,
        centroids: SharedCentroids,
        exchange: NoticeExchange,
        keys: Keyring,
    ) -> None:
        self._locality = locality
        self._centroids = centroids
        self._exchange = exchange
        self._keys = keys
        self._orders: OrderedDict[tuple[str, str], asyncio.Task[RefitAnswer]] = OrderedDict()
        """Of other routers, by the router and its id."""
        exchange.give((REFIT,), self)

    async def order(self, caller: Caller, force: bool) -> dict[str, Any]:
        """What came of a refit. `force`: it is adopted even if it gains little.

        Raises:
            ApiError: there was none, and why.
        """
        if self._locality.following:
            answer = await self._there(self._centroids.fitter, caller, force)
        else:
            answer = await self._here(force)
        if answer.status != 200:
            retry_after = RETRY_S if answer.status == 503 else None
            raise ApiError(answer.status, answer.message, retry_after=retry_after)
        return answer.told

    async def take_notice(self, notice: Notice) -> RefitAnswer:
        asked = msgspec.json.decode(notice.body, type=RefitAsked)
        if not self._keys.vouched(Caller(admin=True), notice.signed, notice.proof):
            return RefitAnswer(
                403,
                f"router {own_name()} fits, and has another admin key: give all routers the same",
            )
        name = notice.sender, asked.order
        if name not in self._orders:
            if asked.begun:
                return RefitAnswer(503, f"router {own_name()} fits, and has lost the order")
            if not self._has_place():
                return RefitAnswer(503, f"router {own_name()} fits, and has {ORDERS_MAX} orders")
            self._orders[name] = asyncio.create_task(self._here(asked.force))
        task = self._orders[name]
        await asyncio.wait([task], timeout=LOOK_S)
        return task.result() if task.done() else RefitAnswer(RUNNING)

    def _has_place(self) -> bool:
        if len(self._orders) >= ORDERS_MAX:
            over = next((name for name, task in self._orders.items() if task.done()), None)
            if over is None:
                return False
            del self._orders[over]
        return True

    async def _here(self, force: bool) -> RefitAnswer:
        try:
            told = await self._locality.refit_now(force)
        except TooFew as error:
            return RefitAnswer(409, str(error)[:MESSAGE_MAX])
        except FittedElsewhere as error:
            return RefitAnswer(503, str(error)[:MESSAGE_MAX])
        except RefitError as error:
            return RefitAnswer(500, f"the refit failed: {error}"[:MESSAGE_MAX])
        serving = self._locality.serving
        version = None if serving is None else serving.version
        return RefitAnswer(200, told=told | {"version": version, "router": own_name()})

    async def _there(self, router: str, caller: Caller, force: bool) -> RefitAnswer:
        asked = RefitAsked(secrets.token_hex(8), force)
        until, tries = monotonic() + WAIT_S, TRIES
        while tries and monotonic() < until:
            answers, _ = await self._exchange.ask(REFIT, asked, RefitAnswer, router, caller)
            answer = answers.get(router)
            if answer is None:
                tries -= 1
            elif answer.status == RUNNING:
                asked, tries = msgspec.structs.replace(asked, begun=True), TRIES
            else:
                return answer
        self._centroids.look()
        if router not in self._exchange.others:
            why = "has gone"
        else:
            why = f"has not ended it within {WAIT_S:g} s" if tries else "does not answer"
        return RefitAnswer(503, f"router {router} fits for all, and {why}: ask again")
