"""All that a relay's streams say in one turn of the HTTP loop leaves in one write.

uvicorn writes each event of each stream to a connection of its own: at 256 streams that is 256
writes a step here, and as many reads in the router. A relay has one more connection here
(`GET /toolkit/step-frames`, `toolkit.contract.step_frames`), and a request that names it has the
body of its answer sent there, in frames. All else is as it was: SGLang makes each stream's bytes as
ever, the head and the end of the answer go to the request's own connection, and a client that
closes that one has its request aborted. An answer that is no stream, or whose relay has no frames
here, does not change at all.

A relay that does not read holds up its own streams, as a client that does not read holds up its
own: frames wait, up to a bound, and then streams do. A single client that is slow to read must not
do that to the others of its relay, so a relay may have one stream sent away (POST): it goes on as
the body of its own answer, with TCP's back-pressure. When the frames' connection breaks, so do
those of all streams in them.
"""

from patches.base import Patch, Process, resolve
from toolkit.contract import step_frames
from toolkit.contract.paths import STEP_FRAMES

APP = "sglang.srt.entrypoints.http_server.app"
RELAYS_MAX = 1024
NAME_MAX = 64


def _add_routes() -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from patches.streams.relay_frames import FramedApp, FramesResponse, RelayFrames, find

    relays: dict[str, RelayFrames] = {}

    async def frames(relay: str = "") -> Response:
        if not relay:
            return JSONResponse([each.describe() for each in relays.values()])
        if relay in relays or len(relay) > NAME_MAX or len(relays) >= RELAYS_MAX:
            return Response("These frames cannot be had.", 409)
        return FramesResponse(relays, relay)

    async def send_away(request: Request) -> Response:
        found, number = find(relays, (await request.body()).decode("latin-1"))
        if found is not None:
            found.send_away(number)
        return Response(status_code=200)

    app = resolve(APP)
    app.add_api_route(STEP_FRAMES, frames, methods=["GET"])
    app.add_api_route(STEP_FRAMES, send_away, methods=["POST"])
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: FramedApp(build(), relays)


PATCH = Patch(
    name=step_frames.PATCH,
    why="each event of each stream is a write of the worker's and a read of the router's",
    gain="CPU time of a streamed event, on workers and in the router",
    after={
        "worker_key": "it needs the server's own `send`, which others wrap",
    },
    independent_of={
        "event_stream": "each looks at requests of its own",
    },
    processes=frozenset({Process.MAIN}),
    requires=(
        APP,
        f"{APP}.build_middleware_stack",
        "uvicorn.protocols.http.httptools_impl.RequestResponseCycle.send",
    ),
    attach=_add_routes,
    attach_to=(f"{APP}.build_middleware_stack",),
)
