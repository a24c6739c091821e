"""A start that can never become ready ends, and says why."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.unit.launch.stand_ins import SERVER, plan, worker
from toolkit.launch import identity, probes
from toolkit.launch.errors import LaunchError
from toolkit.launch.phases import Phase, PhaseInputs, next_move
from toolkit.launch.plan import Plan
from toolkit.launch.ports import FreePorts
from toolkit.launch.probes import REFUSED, Probes
from toolkit.launch.process import Managed, Status
from toolkit.launch.running import running
from toolkit.launch.supervisor import Supervisor

REFUSES = SERVER.replace(
    "def do_GET(self):\n        self.answer({})",
    "def do_GET(self):\n        self.send_error(404, 'no such path')",
)
RUDE = """
import socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client, _ = listening.accept()
    client.recv(9999)
    client.sendall(b"220 mail.example ESMTP\\r\\n\\r\\n")
    client.close()
"""


def _fails(wanted: Plan, folder: Path) -> str:
    """Why it failed, within what a test may take."""
    supervisor = Supervisor(wanted, folder)
    thread = threading.Thread(target=lambda: _quiet(supervisor.run))
    thread.start()
    try:
        assert supervisor.settled.wait(60), "it still waits"
        return str(supervisor.failure)
    finally:
        supervisor.request_stop(now=True)
        thread.join(60)


def _quiet(run: Callable[[], None]) -> None:
    try:
        run()
    except LaunchError:
        pass


@pytest.mark.parametrize(
    ("code", "why"),
    [(REFUSES, "/health answered 404"), (RUDE, "220 mail.example")],
    ids=["404 for ever", "no HTTP"],
)
def test_what_is_up_and_refuses_for_ever_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(probes, "EVERY", 0.05)
    monkeypatch.setattr(probes, "REFUSED", 10)
    wanted = plan([worker("worker-0", free_port(), code)])
    assert why in _fails(wanted, tmp_path)


class _At:
    """A worker whose URL nobody can ask: what a URL put together by hand was for IPv6."""

    health_url = "http://::1:31000/health"


def test_a_malformed_url_ends_the_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolkit.launch.plan import WorkerPlan

    monkeypatch.setattr(WorkerPlan, "health_url", _At.health_url)
    monkeypatch.setattr("toolkit.launch.keys.hold", lambda plan, key: None)
    monkeypatch.setattr("toolkit.launch.keys.drop", lambda plan: None)
    wanted = plan([worker("worker-0", free_port())])
    failure = _fails(wanted, tmp_path)
    assert "cannot be asked whether it is ready" in failure and "::1:31000" in failure


def _managed(folder: Path) -> Managed:
    log = folder / "log"
    log.touch()
    return Managed("w", "plain", None, "http://127.0.0.1:1/health", (), {}, log,
                   status=Status.STARTING)  # fmt: skip


class _Asked:
    """Answers each question at once, with the next of what is to be found."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def ask(self, question: object, answer: Callable[[object], None]) -> None:
        answer(self.found.pop(0))


def _probed(folder: Path, found: list[Any]) -> Managed:
    process = _managed(folder)
    asking = Probes("run", _Asked(found), lambda text: None)  # type: ignore[arg-type]
    for turn in range(len(found)):
        asking.tick([process], turn * probes.EVERY * 2)
    return process


def test_refusals_end_a_start_only_in_a_row(tmp_path: Path) -> None:
    refusal, busy = identity.Probe(404, why="404", refuses=True), identity.Probe(503, why="503")
    many = [refusal] * (REFUSED - 1)
    assert _probed(tmp_path, [*many, busy, *many]).status is Status.STARTING
    assert _probed(tmp_path, [*many, refusal]).status is Status.FAILED
    assert _probed(tmp_path, [busy] * 5 * REFUSED).status is Status.STARTING
    assert _probed(tmp_path, [*many, identity.Probe(200)]).status is Status.READY


def test_a_start_that_takes_too_long_says_what_the_last_probe_found(tmp_path: Path) -> None:
    process = _probed(tmp_path, [identity.Probe(0, why="nobody listens at [::1]:5")])
    wanted = plan([worker("w", 5)])
    move = next_move(Phase.STARTING, PhaseInputs(wanted, [process], late=True))
    assert move is not None and "nobody listens at [::1]:5" in str(move.problems[0])


@contextmanager
def _on_ipv6(port: int) -> Iterator[None]:
    class Server(http.server.ThreadingHTTPServer):
        address_family = __import__("socket").AF_INET6

    server = Server(("::1", port), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_port_that_is_taken_on_ipv6_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.launch import ports

    free = FreePorts().take()
    monkeypatch.setattr(ports, "_outside_ephemeral", lambda: (free, free + 2))
    assert FreePorts().take() == free
    with _on_ipv6(free), pytest.raises(OSError, match="consecutive free ports"):
        FreePorts().take()


def test_a_worker_on_ipv6_gets_ready(tmp_path: Path) -> None:
    code = SERVER.replace('("127.0.0.1", int', '("::1", int').replace(
        'print("serving", flush=True)',
        "http.server.ThreadingHTTPServer.address_family = __import__('socket').AF_INET6\n"
        "print('serving', flush=True)",
    )
    port = free_port()
    six = replace(worker("worker-0", port, code), address="::1", url=f"http://[::1]:{port}")
    with running(plan([six]), tmp_path) as up:
        assert [each.status for each in up.workers] == [Status.READY]
