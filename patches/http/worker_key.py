"""Every endpoint of a worker wants the run's own key.

The launcher makes the key and puts it into the environment of the run's workers and router
(`toolkit.launch.keys`). SGLang's `--api-key` would show it in `ps`, in the line of the log that
tells all its arguments, and in /server_info, which routers pass on to clients; it also leaves
/health and /metrics open. Here the check is around the whole ASGI application, so nothing of it
answers without the key: no route, no 404, no CORS preflight. SGLang itself asks its own server (for
the warm-up) and a decode worker sometimes a prefill worker; those requests get the key here.

A worker in whose environment there is no key is as SGLang made it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch, PatchError, Process, Variant, resolve
from patches.flags import ASKED, WRITTEN, resolved_view
from patches.layers import Original
from patches.sglang_types import App, Receive, Scope, Send, ServerArgs
from toolkit.contract.unguarded import worker_problems
from toolkit.contract.variables import WORKER_KEY_VARIABLE

if TYPE_CHECKING:
    import requests

SERVER = "sglang.srt.entrypoints.http_server"
WARM_UP = f"{SERVER}._send_disaggregation_warmup_requests"
UNAUTHORIZED = b'{"error":"Unauthorized: this worker takes requests of its own run only"}'


def header() -> dict[str, str]:
    """What a request to a worker of this run carries; empty without a key."""
    key = os.environ.get(WORKER_KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


class KeyCheck:
    """An ASGI application that passes on only what carries the key."""

    def __init__(self, app: App, key: str) -> None:
        self._app = app
        self._wanted = _digest(f"Bearer {key}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. `lifespan` is the server's own."""
        if scope["type"] == "lifespan" or self._allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(UNAUTHORIZED)).encode()),
                (b"connection", b"close"),  # its body is not read
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": UNAUTHORIZED})

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(_digest(given[0]), self._wanted)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


class KeyedRequests:
    """The module `requests` as SGLang's HTTP server uses it: what it asks itself has the key."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)

    def get(self, url: str, **options: object) -> object:
        """`requests.get` with the key."""
        return self._module.get(url, **_keyed(options))

    def post(self, url: str, **options: object) -> object:
        """`requests.post` with the key."""
        return self._module.post(url, **_keyed(options))


def _keyed(options: dict[str, object]) -> dict[str, object]:
    given = options.get("headers")
    return options | {"headers": {**(given if isinstance(given, Mapping) else {}), **header()}}


def _with_key(
    original: Original[object],
    url: str,
    headers: dict[str, str],
    *rest: object,
    **named: object,
) -> object:
    return original(url, {**headers, **header()}, *rest, **named)


def _with_key_too(
    original: Original[object],
    server_args: ServerArgs,
    url: str,
    headers: dict[str, str],
    *rest: object,
    **named: object,
) -> object:
    """In 0.5.17 it is given the flags first."""
    return original(server_args, url, {**headers, **header()}, *rest, **named)


def _session_with_key(original: Original[requests.Session], manager: object) -> requests.Session:
    """A decode worker has a prefill worker compute a request once more."""
    session = original(manager)
    session.headers.update(header())
    return session


def _guarded_stand_in(original: Original[object], *args: object, **named: object) -> object:
    """The small server of a higher node, which answers probes only."""
    import uvicorn

    key = os.environ[WORKER_KEY_VARIABLE]
    config = uvicorn.Config

    def guarded(app: App, **options: object) -> object:
        return config(KeyCheck(app, key), **options)

    uvicorn.Config = guarded
    try:
        return original(*args, **named)
    finally:
        uvicorn.Config = config


def _guard_server() -> None:
    key = os.environ[WORKER_KEY_VARIABLE]
    server = resolve(SERVER)
    app, build = server.app, server.app.build_middleware_stack
    if app.middleware_stack is not None:
        raise PatchError("the HTTP server has begun before its key was asked for")
    app.build_middleware_stack = lambda: KeyCheck(build(), key)
    server.requests = KeyedRequests(server.requests)


def _refuse_other_ports(
    original: Original[object], server_args: ServerArgs, *args: object, **named: object
) -> object:
    """Servers of SGLang's that are no ASGI application cannot be guarded: they do not start."""
    from patches.base import refuse

    view = resolved_view(server_args)
    flags = {name: getattr(view, name) for name in ("grpc_port", "tokenizer_worker_num")}
    found = [f"--{problem.where}" for problem in worker_problems(flags)]
    if resolve("sglang.srt.environ.envs").SGLANG_RUST_SERVER.get():
        found.append("SGLANG_RUST_SERVER")
    if found:
        refuse(f"{' and '.join(found)}: that server would take requests without the run's key")
    return original(server_args, *args, **named)


PATCH = Patch(
    name="worker_key",
    why="who reaches a worker's port could run, abort and read requests past the router",
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(f"{SERVER}.launch_server", _refuse_other_ports, ("server_args",)),
        Hook(
            "sglang.srt.utils.common.launch_dummy_health_check_server",
            _guarded_stand_in,
            ("host", "port"),
        ),
    ),
    requires=(
        f"{SERVER}.app",
        f"{SERVER}.app.build_middleware_stack",
        f"{SERVER}.requests",
        f"{SERVER}._execute_server_warmup",
        "sglang.srt.environ.envs.SGLANG_RUST_SERVER",
    ),
    variants=(
        Variant(
            "from 0.5.20",
            hooks=(Hook(WARM_UP, _with_key, ("url", "headers")),),
            requires=(f"{SERVER}._freeze_gc_after_server_warmup", *ASKED),
        ),
        Variant(
            "0.5.17",
            hooks=(Hook(WARM_UP, _with_key_too, ("server_args", "url", "headers")),),
            requires=WRITTEN,
        ),
    ),
    attach=_guard_server,
    attach_to=(f"{SERVER}.app.build_middleware_stack",),
    variable=WORKER_KEY_VARIABLE,
)

SCHEDULER_PATCH = Patch(
    name="worker_key_sent",
    why="a decode worker that has a prefill worker compute again needs the run's key",
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager._get_prefill_recompute_session",
            _session_with_key,
            ("self",),
        ),
    ),
    variable=WORKER_KEY_VARIABLE,
)
