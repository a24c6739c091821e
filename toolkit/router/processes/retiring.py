"""A relay from which others take over: what it has comes to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from toolkit.router.admission import Admission
    from toolkit.router.lobby import Lobby

LOOK_S = 0.05
ROOM = 64
"""So many connections are left to the relays that take new ones, as long as idle ones can go."""


class Retiring:
    """Whether it has begun. A request that comes on a connection that is open is served as any
    other, and its answer says that the connection ends with it: no client is refused or cut."""

    def __init__(self) -> None:
        self.on = False

    def mark(self, app: web.Application) -> None:
        """Have answers say it."""

        async def say(_: web.Request, response: web.StreamResponse) -> None:
            if self.on:
                response.force_close()
                response.headers["Connection"] = "close"

        app.on_response_prepare.append(say)

    async def over(self, clients: Lobby, admission: Admission) -> None:
        """Until nobody is connected any more. Those that are idle stay as long as ever: a client
        might just be sending on one of them."""
        self.on = True
        while True:
            await asyncio.sleep(LOOK_S)  # first: what was just accepted is not in the lobby yet
            if not (clients.live or admission.busy):
                return
            clients.keep_room(ROOM)
