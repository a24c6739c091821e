"""A worker whose processes stand still is ended from outside and started again: real processes."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.unit.launch.runs import Events
from tests.unit.launch.stand_ins import plan, worker
from toolkit.contract import heartbeat
from toolkit.contract.heartbeat import HTTP, Beat, HeartbeatFile
from toolkit.decide.watchdog import StuckBounds
from toolkit.launch.command import python_env
from toolkit.launch.plan import Plan
from toolkit.launch.process import Managed, Status
from toolkit.launch.running import running
from toolkit.launch.scratch import heartbeats
from toolkit.launch.stalls import EVERY, LATER_S, WorkerStalls
from toolkit.launch.wait_limits import STUCK, bounds
from toolkit.settings.processes import Restart

BEATING = """
import http.server, os, sys, threading, time
from pathlib import Path
from toolkit.contract.heartbeat import Beat, HeartbeatFile, scheduler
out = HeartbeatFile(Path(os.environ["TOOLKIT_HEARTBEAT"]) / scheduler(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"meta_info": {"completion_tokens": 4}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
beats = 0
while True:
    beats += 1
    out.write(Beat(beats, True, "decode step", 0.01))
    time.sleep(0.05)
"""
FAST = Restart(first_delay=0.05, max_delay=0.05, stuck_s=0.5)


def beating(restart: Restart) -> Plan:
    made = [worker(f"worker-{n}", free_port(), BEATING) for n in range(2)]
    return plan([replace(each, env=python_env()) for each in made], restart)


@pytest.mark.slow
def test_a_stopped_worker_is_killed_and_started_again(tmp_path: Path) -> None:
    events = Events()
    with running(beating(FAST), tmp_path, events) as deployment:
        before = deployment.worker("worker-1")
        assert before.pid is not None
        os.kill(before.pid, signal.SIGSTOP)  # it hears no SIGTERM
        events.wait_for("worker-1: ready", 2)
        after = deployment.worker("worker-1")
        assert after.restarts == 1
        assert after.pid != before.pid
        assert deployment.worker("worker-0").restarts == 0
    said = [text for text in events.seen if "stuck" in text]
    assert "scheduler-0: no step for" in said[0]
    assert "(it was at: decode step)" in said[0]
    assert "starting again in" in said[1]


@pytest.fixture
def looked(tmp_path: Path) -> Callable[[dict[str, Beat], float], list[str]]:
    """Judge a worker that has written this and then nothing for so many seconds."""
    stalls = WorkerStalls(StuckBounds(5.0, 120.0), tmp_path)
    m = Managed("decode-0", "decode", "", "", (), {}, tmp_path)
    m.status = Status.READY
    now = 0.0

    def look(beats: dict[str, Beat], seconds: float) -> list[str]:
        stalls.begin(m)
        folder = heartbeats(tmp_path, m.name)
        for name, beat in beats.items():
            HeartbeatFile(folder / name).write(beat)
        nonlocal now
        until, found = now + seconds + EVERY, []
        while now <= until:
            now += EVERY
            found = stalls.tick([m], now)
        return [why for _, why in found]

    return look


RANK, OTHER = heartbeat.scheduler(0), heartbeat.scheduler(1)


@pytest.mark.parametrize(
    ("beats", "seconds", "stuck"),
    [
        ({RANK: Beat(1, True)}, 5.0 + LATER_S - 2 * EVERY, False),
        ({RANK: Beat(1, True)}, 5.0 + LATER_S, True),
        ({RANK: Beat(1, False)}, 300.0, False),  # it has nothing to do
        ({RANK: Beat(1, False), HTTP: Beat(1, False)}, 10.0, False),
        ({RANK: Beat(1, False), HTTP: Beat(1, True)}, 7.0, True),  # but there is something
        ({RANK: Beat(1, True, "first prefill of 9 tokens")}, 100.0, False),
        ({RANK: Beat(1, True, "first prefill of 9 tokens")}, 121.0, True),
        ({RANK: Beat(1, True), OTHER: Beat(1, True, "first decode step")}, 100.0, False),
        ({RANK: Beat(1, True), OTHER: Beat(1, True, "first decode step")}, 121.0, True),
        ({heartbeat.follower(7): Beat(1, True)}, 7.0, True),
        ({HTTP: Beat(1, False)}, 100.0, False),  # it may tokenize
        ({HTTP: Beat(1, False)}, 121.0, True),  # stopped, so it serves nobody
        ({}, 300.0, False),
    ],
)
def test_who_is_stuck(
    looked: Callable[[dict[str, Beat], float], list[str]],
    beats: dict[str, Beat],
    seconds: float,
    stuck: bool,
) -> None:
    assert bool(looked(beats, seconds)) is stuck


def test_what_a_former_life_wrote_does_not_count(
    looked: Callable[[dict[str, Beat], float], list[str]],
) -> None:
    assert looked({RANK: Beat(1, True)}, 60.0)
    assert not looked({}, 60.0)


def test_bounds_are_the_devices_unless_the_deployment_says_its_own() -> None:
    assert bounds("cuda", Restart()) == STUCK["cuda"] == StuckBounds(20.0, 300.0)
    assert bounds("cpu", Restart()) == StuckBounds(5.0, 120.0)
    assert bounds("cuda", Restart(stuck_s=0)).stuck_s == 0
    assert bounds("cpu", Restart(announced_s=7)) == StuckBounds(5.0, 7.0)
