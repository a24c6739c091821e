"""A worker's key: SGLang's own application behind it, and who in a run gets it."""

import asyncio
from typing import Any

import pytest

from patches.base import Process
from patches.http.worker_key import PATCH, SCHEDULER_PATCH, KeyCheck
from patches.registry import patches_for
from tests.sglang_python import found_by
from toolkit.contract.variables import WORKER_KEY_VARIABLE

KEY = "the-run's-own"


async def ask(app: Any, *authorization: bytes, kind: str = "http") -> list[dict[str, Any]]:
    """What an ASGI application sends for one request."""
    sent: list[dict[str, Any]] = []
    headers = [(b"authorization", value) for value in authorization]
    scope = {"type": kind, "method": "GET", "path": "/", "headers": headers}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, None, send)
    return sent


def inner(seen: list[str]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    return app


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer the-run's-ow",),
        (b"Bearer the-run's-own ",),
        (b"Basic the-run's-own",),
        (b"\xff\xfe",),
        (b"Bearer the-run's-own", b"Bearer other"),
    ],
)
def test_without_the_key_nothing_of_the_application_answers(wrong: tuple[bytes, ...]) -> None:
    seen: list[str] = []
    guarded = KeyCheck(inner(seen), KEY)
    assert asyncio.run(ask(guarded, *wrong))[0]["status"] == 401
    closed = asyncio.run(ask(guarded, *wrong, kind="websocket"))
    assert closed == [{"type": "websocket.close", "code": 1008}]
    assert seen == []
    asyncio.run(ask(guarded, b"Bearer the-run's-own"))
    asyncio.run(ask(guarded, kind="lifespan"))
    assert seen == ["http", "lifespan"]


def test_only_a_worker_with_a_key_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_KEY_VARIABLE, raising=False)
    for process in Process:
        assert not {PATCH, SCHEDULER_PATCH} & set(patches_for(process, on_cpu=True))
    monkeypatch.setenv(WORKER_KEY_VARIABLE, KEY)
    assert {PATCH, SCHEDULER_PATCH} <= set(patches_for(Process.MAIN, on_cpu=True))
    assert SCHEDULER_PATCH in patches_for(Process.SCHEDULER, on_cpu=True)


SERVED = """
import asyncio, json, os, threading, http.server, urllib.error, urllib.request
import patches
patches.register()
from sglang.srt.entrypoints import http_server
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.utils import common

async def status(method, path, key):
    sent = []
    async def send(message):
        sent.append(message)
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    headers = [(b"authorization", b"Bearer " + key)] if key else []
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
             "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
             "scheme": "http", "headers": headers + [(b"origin", b"https://example.org"),
             (b"access-control-request-method", b"POST")], "client": ("a", 1), "server": ("b", 2)}
    await http_server.app(scope, receive, send)
    return sent[0]["status"]

async def all_of(key):
    found = {}
    for route in http_server.app.routes:
        for method in getattr(route, "methods", None) or ():
            if key is None or route.path in ("/toolkit/none",):
                found[method + " " + route.path] = await status(method, route.path, key)
    found["GET /no/such"] = await status("GET", "/no/such", key)
    found["OPTIONS /generate"] = await status("OPTIONS", "/generate", key)
    return found

heard = []
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        heard.append([self.path, self.headers.get("Authorization")])
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    do_POST = do_GET
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
http_server.requests.get(url + "/model_info", headers={}, timeout=5)
class Arguments:
    def url(self):
        return url
    ssl_verify = False
class Group:
    admin_api_key = api_key = None
http_server.get_serving = lambda: Group
http_server.ssl_verify_of = lambda arguments: False
http_server._freeze_gc_after_server_warmup(Arguments())
class Parallel:
    dp_size = 1
http_server.get_parallel = lambda: Parallel
asyncio.run(http_server._send_disaggregation_warmup_requests(
    url=url, headers={}, ssl_verify=False, timeout=5))
manager = CommonKVManager.__new__(CommonKVManager)
manager._prefill_recompute_sessions = threading.local()
manager._get_prefill_recompute_session().get(url + "/generate")

from patches.worker import main as _
from tests.ports import free_port
port = free_port()
common.launch_dummy_health_check_server("127.0.0.1", port, False)
import time
def probe(headers):
    for _ in range(100):
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/health", headers=headers)
            return urllib.request.urlopen(asked, timeout=5).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.05)
print(json.dumps({
    "without": asyncio.run(all_of(None)), "with": asyncio.run(all_of(b"key-of-the-run")),
    "heard": heard,
    "stand-in": [probe({}), probe({"Authorization": "Bearer key-of-the-run"})],
}))
"""


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    """SGLang's own HTTP application with all patches, asked over ASGI; no model."""
    return found_by(SERVED, **{WORKER_KEY_VARIABLE: "key-of-the-run"})


def test_every_route_of_sglang_wants_the_key(served: dict[str, Any]) -> None:
    assert len(served["without"]) > 60
    for path in ("GET /health", "GET /toolkit/events", "POST /abort_request", "GET /server_info"):
        assert path in served["without"]
    assert {path: code for path, code in served["without"].items() if code != 401} == {}
    assert served["with"] == {"GET /no/such": 404, "OPTIONS /generate": 200}


def test_what_sglang_asks_its_own_servers_has_the_key(served: dict[str, Any]) -> None:
    paths = [path for path, _ in served["heard"]]
    assert paths == ["/model_info", "/freeze_gc", "/generate", "/generate"]
    assert {key for _, key in served["heard"]} == {"Bearer key-of-the-run"}


def test_the_stand_in_of_a_higher_node_wants_it_too(served: dict[str, Any]) -> None:
    assert served["stand-in"] == [401, 200]
