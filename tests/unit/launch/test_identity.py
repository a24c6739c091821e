"""Ready means that *these* processes answer; and orders go to this run's router only."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.unit.launch.runs import until
from tests.unit.launch.stand_ins import SERVER, deployment, plan, routed, worker
from toolkit.contract.headers import RUN as HEADER
from toolkit.contract.variables import RUN_ID_VARIABLE as VARIABLE
from toolkit.launch import drain, identity, readiness
from toolkit.launch.command import sglang_router_command, source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.progress import Quiet
from toolkit.launch.running import running
from toolkit.launch.state import STATE
from toolkit.launch.supervisor import Supervisor
from toolkit.settings.processes import Restart

pytestmark = pytest.mark.touched("launching")

NEVER = "import time; time.sleep(600)"
"""A worker that has not taken its port yet."""


class Events(Quiet):
    """What the supervisor said."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def event(self, text: str) -> None:
        self.seen.append(text)


@contextmanager
def process(*command: str, run: str = "", port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another run (of none, where `run` is empty) that listens on `port`."""
    env = {k: v for k, v in os.environ.items() if k != VARIABLE}
    env |= {VARIABLE: run} if run else {}
    started = subprocess.Popen(
        [sys.executable, *command],
        cwd=source_root(),
        env=env,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        until(lambda: readiness.get(f"http://127.0.0.1:{port}/health")[0] == 200)
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@contextmanager
def supervised(plan: Plan, folder: Path, events: Events | None = None) -> Iterator[Supervisor]:
    """As `running`, without its checks: what comes in their way has come after them."""
    folder.mkdir(exist_ok=True)
    supervisor = Supervisor(plan, folder, events)

    def run() -> None:
        try:
            supervisor.run()
        except LaunchError:
            pass  # `failure` says it

    thread = threading.Thread(target=run)
    thread.start()
    try:
        supervisor.settled.wait(60)
        yield supervisor
    finally:
        supervisor.request_stop(now=True)
        thread.join(60)


def test_a_strangers_200_is_not_ready_and_it_is_named(tmp_path: Path) -> None:
    port = free_port()
    with process("-S", "-c", SERVER, str(port), port=port) as stranger:
        with supervised(plan([worker("worker-0", port, NEVER)]), tmp_path) as supervisor:
            assert supervisor.phase == "failed"
        text = str(supervisor.failure)
        assert f"worker-0: port {port} is answered by process {stranger.pid} (python" in text
        assert "which is of no run" in text


def test_another_runs_worker_is_named_by_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("TOOLKIT_RUNS", str(tmp_path / "runs"))
    theirs = tmp_path / "runs" / "prod-1"
    theirs.mkdir(parents=True)
    state = {"name": "prod", "phase": "ready", "pid": 0, "start_ticks": 0, "run_id": "their-id"}
    (theirs / STATE).write_text(json.dumps(state))
    with process("-S", "-c", SERVER, str(port), run="their-id", port=port):
        with supervised(plan([worker("worker-0", port, NEVER)]), tmp_path / "mine") as supervisor:
            pass
        text = str(supervisor.failure)
        assert f"port {port} is answered by another run: prod-1 (deployment prod" in text


def test_a_stranger_after_a_death_does_not_end_the_others(tmp_path: Path) -> None:
    port, events = free_port(), Events()
    two = plan([worker("worker-0", port), worker("worker-1", free_port())], Restart(first_delay=1))
    with supervised(two, tmp_path, events) as supervisor:
        assert supervisor.phase == "ready"
        pid = supervisor.fleet.processes["worker-0"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: not readiness.get(f"http://127.0.0.1:{port}/health")[0])
        with process("-S", "-c", SERVER, str(port), port=port):
            until(lambda: any("not ready: port" in text for text in events.seen))
            assert supervisor.fleet.processes["worker-0"].status != "ready"
            assert supervisor.fleet.processes["worker-1"].status == "ready"
            assert supervisor.phase == "ready"
        until(lambda: supervisor.fleet.processes["worker-0"].status == "ready")


def test_a_process_deep_in_the_workers_tree_is_ours(tmp_path: Path) -> None:
    port = free_port()
    deep = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {SERVER!r}, "
    deep += "sys.argv[1]])"
    with supervised(plan([worker("worker-0", port, deep)]), tmp_path) as supervisor:
        assert supervisor.phase == "ready", supervisor.failure


def test_a_listener_on_all_addresses_is_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as one:
        port = one.getsockname()[1]
        assert identity.listeners("127.0.0.1", port) == {os.getpid()}
        assert identity.listeners("localhost", port) == {os.getpid()}
    with socket.create_server(("127.0.0.2", 0)) as other:
        assert identity.listeners("127.0.0.1", other.getsockname()[1]) == set()
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as both:  # as uvicorn on "::"
        assert identity.listeners("127.0.0.1", both.getsockname()[1]) == {os.getpid()}


def test_a_stranger_is_sent_nothing() -> None:
    """A probe may carry the run's key."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        found = identity.probe(f"http://127.0.0.1:{port}/health", 5, "mine", {})
        assert found.stranger and f"process {os.getpid()}" in found.stranger
        connection, _ = stranger.accept()
        with connection:
            assert connection.recv(1) == b""
    assert identity.probe(f"http://127.0.0.1:{port}/health", 5, "mine", {}).status == 0


def test_another_runs_router_is_not_ours(tmp_path: Path) -> None:
    """Both routers are real ones; the second run's cannot have its port."""
    first, port = routed(free_port(), free_port()), free_port()
    (tmp_path / "first").mkdir()
    with running(first, tmp_path / "first") as up:
        assert up.plan.router is not None
        ours = readiness.ask(f"{up.router_url}/readiness")
        assert ours.status == 200 and ours.run == up.supervisor.run_id
        second = routed(port, up.plan.router.port)
        # Under another address: the locks are not to refuse it first.
        assert second.router is not None
        second = replace(second, routers=(replace(second.router, host="localhost"),))
        with supervised(second, tmp_path / "second") as supervisor:
            text = str(supervisor.failure)
        port = up.plan.router.port
        assert f"router: port {port} is answered by another run" in text
        assert readiness.get(f"{up.router_url}/readiness")[0] == 200


def test_a_drain_goes_to_this_runs_router_or_nowhere(tmp_path: Path) -> None:
    events = Events()
    port, admin = free_port(), free_port()
    ports = {"port": port, "admin_port": admin}
    config = {**ports, "workers": [{"name": "w", "role": "plain", "url": "http://[::1]:1"}]}
    (tmp_path / "router.json").write_text(json.dumps(config | {"dispatch": "concurrent"}))
    later = Restart(first_delay=60, max_delay=60)
    made = routed(free_port(), port)
    assert made.router is not None and made.router.config is not None
    router_plan = replace(made.router, config={**made.router.config, **ports})
    mine = replace(made, restart=later, routers=(router_plan,))
    with supervised(mine, tmp_path / "run", events) as supervisor:
        assert supervisor.phase == "ready", supervisor.failure
        router = supervisor.fleet.processes["router"]
        assert router.pid is not None
        os.kill(router.pid, signal.SIGKILL)
        until(lambda: router.status == "restarting")
        command = ("-m", "toolkit.router", str(tmp_path / "router.json"))
        with process(*command, run="their-id", port=port):
            supervisor.request_stop()
            until(lambda: supervisor.phase == "stopped")
            _, why = readiness.get(f"http://127.0.0.1:{port}/readiness")
            assert b"draining" not in why
            (said,) = [text for text in events.seen if "cannot drain" in text]
            assert f"port {admin} is answered by another run: their-id" in said
            # And one that got the order all the same refuses it.
            url = f"http://127.0.0.1:{admin}/admin/drain"
            status, body = readiness.post(url, {}, 5, headers={HEADER: "mine"})
            assert status == 409 and b"this is the router of run their-id" in body
            status, _ = readiness.post(url, {}, 5, headers={HEADER: "their-id"})
            assert status == 200


@pytest.mark.slow
def test_sglangs_own_router_says_no_run_and_is_known_all_the_same(tmp_path: Path) -> None:
    port = free_port()
    made = routed(free_port(), port)
    entry = {"role": "plain", "url": made.workers[0].url}
    file = deployment(tmp_path, mode="plain", router={"kind": "sglang"}, timeouts={"start": 30})
    command = tuple(sglang_router_command(file, port, free_port(), [entry]))
    assert made.router is not None
    router = replace(made.router, kind="sglang", command=command, config=None)
    with supervised(replace(made, routers=(router,)), tmp_path / "run") as supervisor:
        assert supervisor.phase == "ready", supervisor.failure
    strange = replace(router, command=(sys.executable, "-S", "-c", NEVER))
    with process("-S", "-c", SERVER, str(port), port=port) as stranger:
        made = replace(made, routers=(strange,))
        with supervised(made, tmp_path / "other") as supervisor:
            pass
        what = f"router: port {port} is answered by process {stranger.pid}"
        assert what in str(supervisor.failure)


@pytest.mark.slow
def test_an_own_router_drains(tmp_path: Path) -> None:
    events = Events()
    with supervised(routed(free_port(), free_port()), tmp_path, events) as supervisor:
        assert drain.left(supervisor.plan, supervisor.run_id) == 0
        supervisor.request_stop()
        until(lambda: supervisor.phase == "stopped")
    assert "drained" in events.seen
