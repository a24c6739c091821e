"""Routers that send to the same workers tell each other what only one of them knows.

They share no secret but the workers' key, know no addresses of each other, and all listen to the
workers. So one of them posts a notice here (`toolkit.contract.notices`), and it comes to the others
on the event streams that they read already. Nothing is kept: a router that does not listen is not
told, and one that does not read is told no more than fits into what may wait for it.
"""

from math import ceil
from time import monotonic

from patches import server_state
from patches.base import Patch, Process, resolve
from patches.streams.event_stream import hub_of
from patches.streams.notice_board import NoticeBoard
from toolkit.contract import notices
from toolkit.contract.headers import RETRY_AFTER_MS
from toolkit.contract.paths import NOTICES

APP = "sglang.srt.entrypoints.http_server.app"


def _board() -> NoticeBoard:
    """That of this server."""
    manager = server_state.serving_manager()
    state = server_state.of(manager)
    return state.find(NoticeBoard) or state.keep(NoticeBoard(hub_of(manager)))


def _add_routes() -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    async def post(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > notices.NOTICE_MAX:
                break  # the board says so; the rest is not read
        status, answer, wait_s = _board().take(bytes(body), monotonic())
        headers = {RETRY_AFTER_MS: str(ceil(wait_s * 1e3))} if wait_s else {}
        return Response(answer, status, headers, "application/json")

    async def counts() -> Response:
        return JSONResponse(dict(_board().counts))

    app = resolve(APP)
    app.add_api_route(NOTICES, post, methods=["POST"])
    app.add_api_route(NOTICES, counts, methods=["GET"])


PATCH = Patch(
    name=notices.PATCH,
    why="routers over the same workers have no other way to tell each other what happens",
    needs=("event_stream",),
    processes=frozenset({Process.MAIN}),
    requires=(APP,),
    attach=_add_routes,
)
