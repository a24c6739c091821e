"""Supervision with small real processes and real signals."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port
from tests.present import present
from tests.unit.launch.runs import LAUNCHER, Events, toolkit
from tests.unit.launch.stand_ins import plan, two_workers, wait_gone, worker
from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.running import running
from toolkit.launch.scratch import scratch, variables
from toolkit.launch.state import read_state
from toolkit.launch.supervisor import Supervisor
from toolkit.settings.processes import Restart

pytestmark = pytest.mark.touched("launching")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Any]:
    """A launcher process of its own, up, and everything that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        cwd=source_root(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stdout:  # type: ignore[union-attr]
            if line.startswith("ready:"):
                break
        state = read_state(tmp_path)
        assert state["phase"] == "ready"
        leaders = {w["pid"]: w["start_ticks"] for w in state["workers"]}
        everything = [p for p in trees.members(leaders, state["run_id"]) if p.pid != process.pid]
        # leader, child and a grandchild in its own session, of two workers
        assert len(everything) >= 6
        everything.append(present(trees.look(state["guard_pid"])))
        yield process, state, everything
    finally:
        process.kill()
        process.wait()
        present(process.stdout).close()


def temporary(pids: Any) -> Any:
    """The folder for temporary files of these processes."""
    (folder,) = {psutil.Process(pid).environ()["TMPDIR"] for pid in pids}
    assert Path(folder).is_dir()
    return Path(folder)


def test_sigkill_of_the_launcher_leaves_nothing(launcher: Any) -> None:
    process, state, everything = launcher
    folder = temporary(each["pid"] for each in state["workers"])
    process.kill()
    process.wait()
    wait_gone(everything)
    assert not folder.exists()
    assert trees.members({}, state["run_id"]) == []


@pytest.mark.slow
def test_sigkill_of_the_guard_then_of_the_launcher_leaves_nothing(
    launcher: Any, tmp_path: Path
) -> None:
    process, state, everything = launcher
    folder = temporary(each["pid"] for each in state["workers"])
    guard = trees.look(state["guard_pid"])
    trees.send(present(guard), signal.SIGKILL)
    wait_gone([guard])  # type: ignore[list-item]
    for line in process.stdout:
        if "started a new one" in line:
            break
    renewed = trees.look(read_state(tmp_path)["guard_pid"])
    process.kill()
    process.wait()
    wait_gone([*everything, renewed])  # type: ignore[list-item]
    assert trees.members({}, state["run_id"]) == []
    assert not folder.exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(launcher: Any, tmp_path: Path, signum: Any) -> None:
    process, _, everything = launcher
    process.send_signal(signum)
    out = process.stdout.read()
    assert process.wait() == 0
    assert "no process is left" in out
    wait_gone(everything)
    assert read_state(tmp_path)["phase"] == "stopped"


def test_status_logs_and_stop_commands(launcher: Any, tmp_path: Path) -> None:
    process, _, everything = launcher
    shown = toolkit("status", "--json", "--run", str(tmp_path))
    assert shown.returncode == 0
    assert [r["status"] for r in json.loads(shown.stdout)["processes"]] == ["ready", "ready"]
    assert "worker-1: serving" in toolkit("logs", "--run", str(tmp_path)).stdout
    assert toolkit("logs", "worker-1", "--run", str(tmp_path)).stdout.endswith("serving\n")
    assert toolkit("logs", "worker-7", "--run", str(tmp_path)).returncode == 1
    stopped = toolkit("stop", "--run", str(tmp_path))
    assert stopped.returncode == 0 and "no process is left" in stopped.stdout
    assert process.wait(30) == 0
    wait_gone(everything)
    assert toolkit("status", "--run", str(tmp_path)).returncode == 3


def test_stop_ends_what_a_stopped_launcher_holds(launcher: Any, tmp_path: Path) -> None:
    process, _, everything = launcher
    process.send_signal(signal.SIGSTOP)  # hung: neither drains nor reacts
    stopped = toolkit("stop", "--now", "--run", str(tmp_path), "--wait-limit", "0.5")
    assert stopped.returncode == 0, stopped.stderr
    wait_gone(everything)


def test_a_killed_worker_is_started_again_on_its_port(tmp_path: Path) -> None:
    events = Events()
    with running(two_workers(), tmp_path, events) as deployment:
        before = deployment.worker("worker-1")
        os.kill(present(before.pid), signal.SIGKILL)
        events.wait_for("worker-1: ready", 2)
        after = deployment.worker("worker-1")
        assert (after.url, after.restarts) == (before.url, 1)
        assert after.pid != before.pid
        assert deployment.worker("worker-0").restarts == 0
        assert any("killed by SIGKILL" in text for text in events.seen)
    assert trees.members({}, deployment.supervisor.run_id) == []


def test_gives_up_with_the_end_of_the_log(tmp_path: Path) -> None:
    code = "import sys; print('the reason'); sys.exit(3)"
    broken = plan(
        [worker("worker-0", free_port(), code)],
        Restart(max_restarts=2, first_delay=0.01, max_delay=0.01),
    )
    with pytest.raises(LaunchError) as caught, running(broken, tmp_path):
        pass
    text = str(caught.value)
    assert "exit status 3; gave up after 2 restarts" in text and "the reason" in text
    assert read_state(tmp_path)["phase"] == "failed"
    assert (tmp_path / "worker-0.log").read_text().count("the reason") == 3


def test_a_refusal_is_final(tmp_path: Path) -> None:
    code = "import sys; print('toolkit: refused: late_binding'); sys.exit(78)"
    refused = plan([worker("worker-0", free_port(), code)])
    with pytest.raises(LaunchError, match="refused: late_binding"), running(refused, tmp_path):
        pass
    assert read_state(tmp_path)["workers"][0]["restarts"] == 0


def test_workers_start_in_turn(tmp_path: Path) -> None:
    first = worker("worker-0", free_port())
    second = replace(worker("worker-1", free_port()), after=("worker-0",))
    events = Events()
    with running(plan([second, first]), tmp_path, events):
        pass
    order = [text.split(" after")[0].split(" (")[0] for text in events.seen]
    assert order.index("worker-0: ready") < order.index("worker-1: started")


def test_second_request_stops_at_once(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    one = worker("worker-0", free_port())
    one = replace(one, command=[*one.command[:3], stubborn + one.command[3], one.command[4]])  # type: ignore[arg-type]
    supervisor = Supervisor(plan([one]), tmp_path)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    supervisor.settled.wait(60)
    supervisor.request_stop()
    supervisor.request_stop()
    thread.join(20)
    assert not thread.is_alive()
    assert trees.members({}, supervisor.run_id) == []


def test_state_is_replaced_never_half_written(tmp_path: Path) -> None:
    from toolkit.launch.state import STATE, write_json

    write_json(tmp_path / STATE, {"n": 0, "pad": "x" * 20000})
    stop = threading.Event()
    torn = []

    def read() -> None:
        while not stop.is_set():
            try:
                read_state(tmp_path)
            except LaunchError as error:
                torn.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(300):
        write_json(tmp_path / STATE, {"n": n, "pad": "x" * (n * 50)})
    stop.set()
    reader.join()
    assert not torn
    assert json.loads((tmp_path / STATE).read_text())["n"] == 299
    assert [p.name for p in tmp_path.iterdir()] == [STATE]


def test_workers_are_groups_of_one_session(launcher: Any) -> None:
    """Niceness is weighed within a session only, where the kernel groups by session."""
    process, state, _ = launcher
    for pid in (each["pid"] for each in state["workers"]):
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(process.pid)


def test_temporary_files_go_with_the_deployment(tmp_path: Path) -> None:
    with running(two_workers(), tmp_path) as up:
        folder = temporary(worker.pid for worker in up.workers)
        (folder / "left").touch()
    assert not folder.exists()


def test_sockets_keep_names_that_the_kernel_takes() -> None:
    short, long = Path("/tmp/toolkit-12345678"), Path("/scratch", "x" * 90)
    assert variables(short)["TMPDIR"] == str(short)
    assert variables(long) == {}


def test_nowhere_for_temporary_files_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(LaunchError, match=r"temporary files: No such file.*set TMPDIR"):
        scratch()


def test_a_recycled_pid_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE,
                          start_new_session=True) as stranger:  # fmt: skip
        start = present(trees.look(stranger.pid)).start
        assert trees.kill_all({stranger.pid: start - 1}) == []
        assert stranger.poll() is None
        trees.kill_all({stranger.pid: start})
        assert stranger.wait() == -signal.SIGKILL
