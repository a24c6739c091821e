"""The router's orders about requests that move: from HTTP to the schedulers.

They go the way of all requests, so ranks that share a request take them up in the same step. Ranks
that do not have the request pass them over.
"""

from typing import Any

from patches.base import Hook, Patch, Process, resolve
from patches.layers import Original
from patches.server_state import serving_manager
from patches.sglang_types import TokenizerManager
from patches.streams.event_stream import hub_of
from toolkit.contract.events import Moving
from toolkit.contract.move_orders import End, decode_order
from toolkit.contract.paths import MOVE
from toolkit.contract.variables import MOVE_VARIABLE

APP = "sglang.srt.entrypoints.http_server.app"


def _add_route() -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def move(request: Request) -> JSONResponse:
        manager = serving_manager()
        try:
            order = decode_order(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if order.rid not in manager.rid_to_state and not isinstance(order, End):
            return JSONResponse({"error": "no such request runs here"}, 404)
        manager._dispatch_to_scheduler(order)
        return JSONResponse({}, 202)

    resolve(APP).add_api_route(MOVE, move, methods=["POST"])


def _pass_events_on(original: Original[None], manager: TokenizerManager) -> None:
    original(manager)
    manager._result_dispatcher += type(manager._result_dispatcher)(
        [(Moving, hub_of(manager).publish)]
    )


def _serve_bootstrap(original: Original[object], *flags: object) -> object:
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
            _pass_events_on,
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
