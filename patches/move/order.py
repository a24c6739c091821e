"""The router's order to send a running request elsewhere: from HTTP to the schedulers.

It goes the way of all requests, so ranks that share a request take it up in the same step. Ranks
that do not have the request pass it over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from patches.base import Hook, Patch, Process, resolve
from patches.streams.event_stream import HUB
from toolkit.contract.events import Moving
from toolkit.contract.paths import MOVE
from toolkit.contract.ticket import MAX_LATE
from toolkit.contract.variables import MOVE_VARIABLE

APP = "sglang.srt.entrypoints.http_server.app"


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Send the KV of the prompt and of `count` output tokens of request `rid` to whoever asks for
    bootstrap room `room`, with the ids of the last `late` of these tokens and of the one after
    them."""

    rid: str
    room: int
    count: int
    late: int


def read_order(body: Any) -> MoveOrder:
    """The order in a request's body.

    Raises:
        ValueError: says what is wrong with it.
    """
    names = ("rid", "room", "count", "late")
    if not isinstance(body, dict) or set(body) != set(names):
        raise ValueError(f"an order is an object with {', '.join(names)}")
    rid, room, count, late = (body[name] for name in names)
    if not isinstance(rid, str) or not rid:
        raise ValueError("rid: the id under which this worker runs the request")
    if any(type(value) is not int for value in (room, count, late)):
        raise ValueError("room, count and late are whole numbers")
    if not 0 < room < 2**63:
        raise ValueError("room: 1 to 2**63 - 1")
    if not 0 <= late <= min(count, MAX_LATE):
        raise ValueError(f"late: 0 to {MAX_LATE}, and not more than count")
    return MoveOrder(rid, room, count, late)


def _add_route() -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def move(request: Request) -> JSONResponse:
        manager = resolve("sglang.srt.entrypoints.http_server.get_global_state")().tokenizer_manager
        try:
            order = read_order(await request.json())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if order.rid not in manager.rid_to_state:
            return JSONResponse({"error": "no such request runs here"}, 404)
        manager._dispatch_to_scheduler(order)
        return JSONResponse({}, 202)

    # What FastAPI looks up by name in this module, the annotation would not be there.
    move.__annotations__["request"] = Request
    resolve(APP).add_api_route(MOVE, move, methods=["POST"])


def _pass_news_on(original: Any, manager: Any) -> None:
    original(manager)
    manager._result_dispatcher += type(manager._result_dispatcher)([(Moving, HUB.publish)])


def _serve_bootstrap(original: Any, *flags: Any) -> Any:
    """SGLang has one on prefill workers: it tells who wants KV where the ranks are."""
    server = original(*flags)  # 0.5.17 is given them
    if server is not None:
        return server
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class
    from sglang.srt.runtime_context import get_disagg, get_serving

    disagg = get_disagg()
    if disagg.disaggregation_mode != "decode":
        return None
    backend = TransferBackend(disagg.disaggregation_transfer_backend)
    kind: Any = get_kv_class(backend, KVClassType.BOOTSTRAP_SERVER)
    return kind(host=get_serving().host, port=disagg.disaggregation_bootstrap_port)


PATCH = Patch(
    name="move_order",
    why="the router says when a request is to be sent elsewhere, and hears what became of it",
    processes=frozenset({Process.MAIN}),
    variable=MOVE_VARIABLE,
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_request_dispatcher",
            _pass_news_on,
            ("self",),
        ),
        Hook("sglang.srt.managers.disagg_service.start_disagg_service", _serve_bootstrap, ()),
    ),
    requires=(
        APP,
        "sglang.srt.entrypoints.http_server.get_global_state",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
        "sglang.srt.disaggregation.utils.KVClassType",
        "sglang.srt.disaggregation.utils.TransferBackend",
        "sglang.srt.disaggregation.utils.get_kv_class",
    ),
    attach=_add_route,
)
