"""The process that serves HTTP, and the DP controller."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from patches.sglang_types.flags import ModelConfig, ServerArgs
from patches.sglang_types.scheduling import Dispatcher
from patches.sglang_types.snapshots import SnapshotReader

if TYPE_CHECKING:
    import zmq

Scope = MutableMapping[str, Any]
"""A request, as ASGI has it."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Url(Protocol):
    """Of a request."""

    path: str


class HttpRequest(Protocol):
    """A request as a route has it: Starlette's `Request`."""

    @property
    def url(self) -> Url: ...

    async def json(self) -> object: ...


class TokenizerManager(Protocol):
    """SGLang's `TokenizerManager`, of a server."""

    server_args: ServerArgs
    model_config: ModelConfig
    is_generation: bool
    incremental_streaming_output: bool
    event_loop: AbstractEventLoop
    load_snapshot_reader: SnapshotReader
    rid_to_state: Mapping[str, object]
    _result_dispatcher: Dispatcher

    def auto_create_handle_loop(self) -> None: ...

    def _dispatch_to_scheduler(self, message: object) -> None: ...


class ServingState(Protocol):
    """SGLang's `_GlobalState`."""

    tokenizer_manager: TokenizerManager
    scheduler_info: dict[str, Any]


class SignalHandler(Protocol):
    """SGLang's `SignalHandler`."""

    tokenizer_manager: TokenizerManager


class Outputs(Protocol):
    """SGLang's `BatchTokenIDOutput` and `BatchStrOutput`: what a step has brought."""

    rids: Sequence[str]
    finished_reasons: Sequence[Mapping[str, object] | None]


class Watchdog(Protocol):
    """It wants to hear that the loop goes on."""

    def feed(self) -> None: ...


class Controller(Protocol):
    """SGLang's `DataParallelController`."""

    workers: Sequence[zmq.Socket[bytes] | None]
    status: Sequence[bool]
    load_snapshot_reader: SnapshotReader
    recv_from_tokenizer: zmq.Socket[bytes]
    scheduler_procs: Sequence[object]
    soft_watchdog: Watchdog
    _request_dispatcher: Dispatcher

    def maybe_external_dp_rank_routing(self, req: object) -> bool: ...
