"""The prefill's rank reaches the bootstrap server that decode asks, whatever happens on the way."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from patches.dp.register import Register, announce
from tests.sglang_python import run_python


class Bootstrap:
    """A bootstrap server; `failures` says what it does with the next posts: a status, or 0 to hang
    up without an answer."""

    def __init__(self) -> None:
        self.told: Queue[tuple[str, dict[str, int]]] = Queue()
        self.failures: list[int] = []
        self.slow_s = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(outer.slow_s)
                status = outer.failures.pop(0) if outer.failures else 200
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"OK")
                if status == 200:
                    outer.told.put((self.path, body))

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    one = Bootstrap()
    yield one
    one.server.shutdown()
    one.server.server_close()


def request(**changed: Any) -> SimpleNamespace:
    known: dict[str, Any] = {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_room": 7,
        "disagg_prefill_dp_rank": None,
    }
    return SimpleNamespace(**known | changed)


SENDER = """
import json, sys, threading, time
import patches
from patches.base import Process, enter
enter(Process.SCHEDULER)
patches.register()
from types import SimpleNamespace
from sglang.srt.disaggregation.common.conn import CommonKVSender

port, ranks = json.loads(sys.argv[1])
before = time.monotonic()
for room, rank in enumerate(ranks):
    manager = SimpleNamespace(**{"attn_cp_rank": 0, "pp_rank": 0} | rank)
    CommonKVSender._register_prefill_dp_rank(SimpleNamespace(
        kv_mgr=manager, bootstrap_room=room, bootstrap_server_url=f"127.0.0.1:{port}"))
print("took", time.monotonic() - before, flush=True)
time.sleep(1.2)
"""


def test_no_scheduler_waits_for_the_bootstrap_server(bootstrap: Bootstrap) -> None:
    """SGLang's own registering, of ranks with and without DP attention."""
    bootstrap.slow_s = 0.3
    attention = {"system_dp_size": 1, "system_dp_rank": 0, "attn_dp_rank": 1}
    plain = {"system_dp_size": 4, "system_dp_rank": 3, "attn_dp_rank": 0}
    ranks = [attention | {"attn_tp_rank": 0}, attention | {"attn_tp_rank": 1}]
    ranks.append(plain | {"attn_tp_rank": 0})
    done = run_python(SENDER, [json.dumps([bootstrap.port, ranks])])
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout.split("took")[1]) < 0.5
    told = [bootstrap.told.get(timeout=5)[1] for _ in range(2)]
    assert told == [{"bootstrap_room": 0, "dp_rank": 1}, {"bootstrap_room": 2, "dp_rank": 3}]
    assert bootstrap.told.empty()


@pytest.mark.parametrize("failures", [[], [500], [0, 0], [0, 503]])
def test_it_is_told_and_told_again(bootstrap: Bootstrap, failures: list[int]) -> None:
    bootstrap.failures = failures
    register = Register()
    for room in range(3):
        req = request(bootstrap_room=room)
        announce(register, req, room % 2, bootstrap.port, "2.2.2.2")
        assert req.disagg_prefill_dp_rank == room % 2  # keeps the scheduler from registering
    told = [bootstrap.told.get(timeout=20) for _ in range(3)]
    assert told == [
        ("/register_dp_rank", {"bootstrap_room": room, "dp_rank": room % 2}) for room in range(3)
    ]


def test_what_cannot_be_told_is_logged_and_the_next_is_told(
    bootstrap: Bootstrap, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap.failures = [500, 500, 500]
    register = Register()
    for room in (1, 2):
        announce(register, request(bootstrap_room=room), 1, bootstrap.port, "2.2.2.2")
    _, body = bootstrap.told.get(timeout=20)
    assert body["bootstrap_room"] == 2
    assert "room 1 has no prefill rank" in caplog.text and "HTTP 500" in caplog.text


@pytest.mark.parametrize(
    "req",
    [
        request(bootstrap_room=None),
        request(bootstrap_host=None),
        request(bootstrap_host="2.2.2.2"),
        request(disagg_prefill_dp_rank=0),
        SimpleNamespace(rid="an embedding"),
    ],
)
def test_who_has_no_decode_to_tell_is_left_alone(bootstrap: Bootstrap, req: Any) -> None:
    register = Register()
    before = vars(req).copy()
    announce(register, req, 1, bootstrap.port, "2.2.2.2")
    assert vars(req) == before
    announce(register, request(bootstrap_room=99), 1, bootstrap.port, "2.2.2.2")
    _, body = bootstrap.told.get(timeout=20)
    assert body["bootstrap_room"] == 99
