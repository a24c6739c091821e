"""POST /admin/migrate, whichever of the routers over the same workers has the requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from toolkit.contract.notices import BODY_MAX
from toolkit.contract.numbers import Count, Small, Text
from toolkit.router import migrate
from toolkit.router.asks import FindMovable, ask_all
from toolkit.router.errors import ApiError
from toolkit.router.keys import OTHER_KEY, Caller
from toolkit.router.own_name import own_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.contract.notices import Notice
    from toolkit.router.asks import AskedPlane
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.keys import Keyring
    from toolkit.router.others.exchange import NoticeExchange

MIGRATE = "migrate"
MOVES_MAX = 128
"""Of another router, by one order."""
MOVED_S = 60.0
"""So long another router may take to move them."""


class MigrateAsked(msgspec.Struct, frozen=True):
    """The body of an admin's order. `look`: say only how many it is about."""

    order: dict[str, Any]
    look: bool = False


class MigrateAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`found`: so many could move; `moves` and `stays`: as `migrate.migrate` says them; `refused`:
    why not, and with which `status`."""

    found: Count = 0
    moves: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MOVES_MAX)] = []
    stays: Annotated[dict[Text, Count], msgspec.Meta(max_length=64)] = {}
    refused: Text = ""
    status: Small = 200


class SharedMoves:
    """Moves this router's requests, and has others move theirs until as many have moved as were
    asked for. Another router believes an order as it does an abort, by the proof of a key."""

    def __init__(
        self,
        known_workers: ConfiguredWorkers,
        exchange: NoticeExchange,
        keys: Keyring,
        planes: Iterable[AskedPlane],
    ) -> None:
        self._workers = known_workers
        self._exchange = exchange
        self._keys = keys
        self._planes = planes
        exchange.give((MIGRATE,), self)

    async def order(self, caller: Caller, body: Any) -> dict[str, Any]:
        """What became of each request.

        Raises:
            ApiError: 400 for a wrong body, 404 when no request of that id runs anywhere.
        """
        order = migrate.read(body, self._workers)
        own = await self._carry_out(order)
        told, silent = {own_name(): own}, set[str]()
        left = order.count - len(own.moves)
        if left > 0:
            look = MigrateAsked(body, look=True)
            seen, silent = await self._exchange.ask(MIGRATE, look, MigrateAnswer, caller=caller)
            told |= seen
            for router, count in [(each, seen[each].found) for each in sorted(seen)]:
                count = min(left, count, MOVES_MAX)
                if count > 0:
                    asked = MigrateAsked(body if order.rid else body | {"count": count})
                    answers, gone = await self._exchange.ask(
                        MIGRATE, asked, MigrateAnswer, router, caller, MOVED_S
                    )
                    told |= answers
                    silent |= gone
                    left -= sum(len(each.moves) for each in answers.values())
        return _answer(order.rid, told, silent)

    async def _carry_out(self, order: migrate.MigrateOrder) -> MigrateAnswer:
        """Of this router's requests."""
        try:
            told = await migrate.migrate(self._planes, order)
        except ApiError as error:
            return MigrateAnswer(refused=error.message, status=error.status)
        return MigrateAnswer(moves=told["moves"], stays=told["stays"])

    async def take_notice(self, notice: Notice) -> MigrateAnswer:
        asked = msgspec.json.decode(notice.body, type=MigrateAsked)
        if not self._keys.vouched(Caller(admin=True), notice.signed, notice.proof):
            return MigrateAnswer(refused=OTHER_KEY, status=403)
        try:
            order = migrate.read(asked.order, self._workers)
        except ApiError as error:
            return MigrateAnswer(refused=error.message, status=error.status)
        if asked.look:
            ask = FindMovable(order.rid, [rank.key for rank in order.source])
            found = await ask_all(self._planes, ask)
            stays = sum((Counter(each.stays) for each in found), Counter[str]())
            return MigrateAnswer(sum(len(each.movable) for each in found), stays=dict(stays))
        answer = await self._carry_out(replace(order, count=min(order.count, MOVES_MAX)))
        moves = answer.moves[:MOVES_MAX]
        while moves and len(msgspec.json.encode(moves)) > BODY_MAX // 2:
            moves.pop()
        return msgspec.structs.replace(answer, moves=moves)


def _answer(rid: str, told: dict[str, MigrateAnswer], silent: set[str]) -> dict[str, Any]:
    """To whom has ordered it: what all routers say."""
    moves = [move for each in told.values() for move in each.moves]
    refused = {name: each.refused for name, each in told.items() if each.status not in (200, 404)}
    if rid and not moves:
        unsure = [f"router {name}: {why}" for name, why in sorted(refused.items())]
        unsure += [f"router {name} does not answer" for name in sorted(silent)]
        own = told[own_name()].refused
        raise ApiError(404, "; ".join((own, *unsure)))
    counted = Counter(move["outcome"] for move in moves)
    stays = sum((Counter(each.stays) for each in told.values()), Counter[str]())
    return {
        "moves": moves,
        **{how: counted[how] for how in migrate.OUTCOMES},
        "stays": dict(stays),
        **({"routers": sorted(told)} if len(told) > 1 or silent else {}),
        **({"unanswered": sorted(silent)} if silent else {}),
        **({"refused": refused} if refused else {}),
    }
