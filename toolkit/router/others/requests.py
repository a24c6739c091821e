"""Orders and questions about requests that another router over the same workers has."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from toolkit.contract.notices import BODY_MAX
from toolkit.contract.numbers import Count, Name, Text
from toolkit.decide.notices import NoticeAllowance
from toolkit.router.asks import AbortRequests, FindRequests, ask_all
from toolkit.router.errors import ApiError
from toolkit.router.keys import Caller

if TYPE_CHECKING:
    from toolkit.contract.notices import Notice
    from toolkit.router.asks import AskedPlane
    from toolkit.router.keys import Keyring
    from toolkit.router.others.exchange import NoticeExchange

ABORT, FIND = "abort", "find"
ROWS_MAX = 16
"""Requests of one name that are told, the newest ones."""
CALLER_BURST, CALLER_PER_SECOND = 128, 32.0
"""Of one client: what it asks here must not use up what this router may tell the others."""


class AbortAsked(msgspec.Struct, frozen=True):
    """Of `caller`'s requests that one, or all that an admin may abort (None)."""

    rid: Text | None
    caller: Name
    admin: bool


class FindAsked(msgspec.Struct, frozen=True):
    """Those of `caller`'s requests, or of all for an admin, that go by this name."""

    name: Text
    caller: Name
    admin: bool


class AbortAnswer(msgspec.Struct, frozen=True):
    """How many were aborted. `refused`: the caller has not been vouched for."""

    aborted: Count = 0
    refused: bool = False


class FindAnswer(msgspec.Struct, frozen=True):
    """As `GET /requests/ID` shows them."""

    requests: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=ROWS_MAX)] = []


class RequestsElsewhere:
    """Asks other routers about requests, and answers them about those of `planes`.

    Who asks is known to the router that was asked first by its key, and the others believe only a
    proof that is made with that key (`Keyring.vouched`); what they then let it do is what they
    would let it do themselves.
    """

    def __init__(
        self, exchange: NoticeExchange, keys: Keyring, planes: Iterable[AskedPlane]
    ) -> None:
        self._exchange = exchange
        self._keys = keys
        self._planes = planes
        self._allowance = NoticeAllowance(CALLER_BURST, CALLER_PER_SECOND)
        exchange.give((ABORT, FIND), self)

    async def abort(self, caller: Caller, rid: str | None) -> tuple[int, int]:
        """Have the other routers abort the caller's request of this id, or (None) all requests. How
        many they have aborted, and how many routers did not answer."""
        self._allow(caller)
        body = AbortAsked(rid, caller.name, caller.admin)
        answers, missing = await self._exchange.ask(ABORT, body, AbortAnswer, caller=caller)
        return sum(each.aborted for each in answers.values()), len(missing)

    async def find(self, caller: Caller, name: str) -> tuple[list[dict[str, Any]], int]:
        """What other routers know of the caller's requests of this name, with who says so, and how
        many routers did not answer."""
        self._allow(caller)
        body = FindAsked(name, caller.name, caller.admin)
        answers, missing = await self._exchange.ask(FIND, body, FindAnswer, caller=caller)
        rows = [
            row | {"router": router} for router, each in answers.items() for row in each.requests
        ]
        return rows, len(missing)

    def _allow(self, caller: Caller) -> None:
        if caller.admin or not self._exchange.others:
            return
        wait_s = self._allowance.take(caller.name, 0, monotonic())
        if wait_s:
            text = "The other routers were asked too much of late about requests unknown here."
            raise ApiError(429, text, retry_after=int(wait_s) + 1)

    async def take_notice(self, notice: Notice) -> AbortAnswer | FindAnswer:
        if notice.kind == FIND:
            return await self._find(notice)
        asked = msgspec.json.decode(notice.body, type=AbortAsked)
        caller = Caller(asked.caller, asked.admin)
        allowed = asked.rid is not None or caller.admin
        if not allowed or not self._keys.vouched(caller, notice.signed, notice.proof):
            return AbortAnswer(refused=True)
        order = AbortRequests(asked.rid, None if caller.admin else caller.name)
        return AbortAnswer(sum(await ask_all(self._planes, order)))

    async def _find(self, notice: Notice) -> FindAnswer:
        asked = msgspec.json.decode(notice.body, type=FindAsked)
        caller = Caller(asked.caller, asked.admin)
        if not (caller.known and self._keys.vouched(caller, notice.signed, notice.proof)):
            return FindAnswer()
        ask = FindRequests(asked.name, None if caller.admin else caller.name, places=caller.admin)
        rows = [row for rows in await ask_all(self._planes, ask) for row in rows]
        rows = sorted(rows, key=lambda row: row["came_at"], reverse=True)[:ROWS_MAX]
        while rows and len(msgspec.json.encode(rows)) > BODY_MAX // 2:
            rows.pop()
        return FindAnswer(rows)
