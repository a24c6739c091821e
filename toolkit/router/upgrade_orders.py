"""The endpoint by which an operator has the router upgraded, and sees how far that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from toolkit.router.errors import ApiError
from toolkit.router.own_answers import as_json, refusal, told

if TYPE_CHECKING:
    from toolkit.router.guard import Guard

PATH = "/admin/upgrade"
LONGEST_S = 86400.0
SHAPE = 'the body must be empty or {"drain_s": SECONDS}'
ALONE = (
    "this router is one process, which decides and has the clients; two of them would count only "
    "their own requests. Give it `relays: 2` and start it again: then it can be upgraded"
)


class TakesUpgrades(Protocol):
    """Who has the router upgraded."""

    def order(self, drain_s: float | None) -> dict[str, Any]:
        """Begin. `drain_s`: so long requests may still run in the former processes; None: as long
        as they take. ApiError: not now."""
        ...

    def progress(self) -> dict[str, Any]:
        """How far it is."""
        ...


class UpgradeOrders:
    """POST /admin/upgrade, and GET. `upgrades`: None in a router of one process."""

    def __init__(self, guard: Guard, upgrades: TakesUpgrades | None) -> None:
        self._guard = guard
        self._upgrades = upgrades

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post(PATH, self.order)
        app.router.add_get(PATH, self.progress)

    async def order(self, request: web.Request) -> web.Response:
        """Have new code take over."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        raw = await request.read()
        body = await told(request) if raw else {}
        if self._upgrades is None:
            return refusal(409, ALONE)
        if not isinstance(body, dict) or not set(body) <= {"drain_s"}:
            return refusal(400, SHAPE)
        drain_s = body.get("drain_s")
        if drain_s is not None and (
            type(drain_s) not in (int, float) or not 0 <= drain_s <= LONGEST_S
        ):
            return refusal(400, f'"drain_s" must be a number from 0 to {LONGEST_S:g}')
        try:
            return as_json(self._upgrades.order(drain_s))
        except ApiError as error:
            return refusal(error.status, error.message)

    async def progress(self, request: web.Request) -> web.Response:
        """How far the last one is."""
        refused = self._guard.refuse_admin(request)
        if refused is not None:
            return refused
        if self._upgrades is None:
            return refusal(409, ALONE)
        return as_json(self._upgrades.progress())
