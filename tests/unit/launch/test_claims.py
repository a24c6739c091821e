"""A run folder and a port belong to one launcher at a time; the kernel takes them back."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.unit.launch.stand_ins import SERVER, plan, wait_gone, worker
from toolkit.launch import claims, trees
from toolkit.launch.checks import possible
from toolkit.launch.command import source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.launch.state import STATE, new_run_dir
from toolkit.launch.supervisor import Supervisor
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment

pytestmark = pytest.mark.touched("launching")

SLOW = "import time; time.sleep(3)\n" + SERVER
"""Takes its port late, as a worker does that loads a model first."""

LAUNCHER = """
import sys
from pathlib import Path
from tests.unit.launch.stand_ins import plan, worker
from toolkit.launch.supervisor import Supervisor
code = "import time; print('begun', flush=True); time.sleep(600)"
Supervisor(plan([worker("worker-0", int(sys.argv[2]), code)]), Path(sys.argv[1])).run()
"""


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ports' locks of these tests."""
    monkeypatch.setenv("TOOLKIT_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def one(port: int, code: str = SERVER, name: str = "stand-in") -> Plan:
    return replace(plan([worker("worker-0", port, code)]), name=name)


Launched = tuple["subprocess.Popen[bytes]", Path, int]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launched]:
    """A launcher in a process of its own that has begun: folder, port."""
    folder, port = tmp_path / "first", free_port()
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(folder), str(port)], cwd=source_root()
    )
    try:
        log = folder / "worker-0.log"
        for _ in range(600):
            if log.is_file() and "begun\n" in log.read_text():
                break
            assert process.poll() is None
            select.select([], [], [], 0.05)
        yield process, folder, port
    finally:
        process.kill()
        process.wait()


def test_a_second_launcher_in_a_folder_is_refused_and_touches_nothing(
    launcher: Launched, tmp_path: Path
) -> None:
    process, folder, _ = launcher
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(LaunchError) as caught, running(one(free_port()), folder):
        pass
    text = str(caught.value)
    assert f"{folder}: is the folder of run {folder} (deployment stand-in" in text
    assert f"launcher pid {process.pid}" in text and "--run-dir" in text
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_same_port_is_refused_before_anything_starts(
    launcher: Launched, tmp_path: Path
) -> None:
    """The first one's worker has not taken its port yet: it looks free."""
    process, folder, port = launcher
    second = tmp_path / "second"
    second.mkdir()
    with pytest.raises(LaunchError) as caught, running(one(port), second):
        pass
    text = str(caught.value)
    assert f"worker-0: port {port} is taken by run {folder}" in text
    assert f"pid {process.pid}" in text and f"toolkit stop --run {folder}" in text
    assert not list(second.iterdir())
    # Past the checks, as when both looked in the same moment.
    with pytest.raises(LaunchError, match=f"port {port} is taken by run {folder}"):
        Supervisor(one(port), second).run()
    assert not list(second.iterdir())


def test_a_new_plan_leaves_out_what_a_launcher_has(
    launcher: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a port that its worker has not opened yet; what a dead launcher left is free."""
    process, _, port = launcher
    assert claims.claimed() == {port}
    with monkeypatch.context() as only:
        only.setattr("toolkit.launch.ports._outside_ephemeral", lambda: (port, port + 2))
        with pytest.raises(OSError, match="no 1 consecutive free ports"):
            resolve(load_deployment(recipes_dir() / "cpu-demo.yaml"))
    process.kill()
    process.wait()
    assert claims.claimed() == set()


@pytest.mark.slow
def test_of_two_at_the_same_moment_one_gets_all(tmp_path: Path) -> None:
    a, b, c = (free_port() for _ in range(3))
    both = [
        plan([worker("worker-0", a, SLOW), worker("worker-1", b, SLOW)]),
        plan([worker("worker-0", c, SLOW), worker("worker-1", b, SLOW)]),
    ]
    for index in range(2):
        (tmp_path / str(index)).mkdir()
    supervisors = [Supervisor(p, tmp_path / str(i)) for i, p in enumerate(both)]
    failures: dict[int, LaunchError] = {}

    def run(index: int) -> None:
        try:
            supervisors[index].run()
        except LaunchError as error:
            failures[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for supervisor in supervisors:
        supervisor.settled.wait(60)
    for supervisor in supervisors:
        if not supervisor.failure:
            assert supervisor.phase == "ready"
            supervisor.request_stop()
    for thread in threads:
        thread.join(60)
    assert len(failures) == 1
    ((loser, error),) = failures.items()
    winner = supervisors[1 - loser].run_dir
    assert f"port {b} is taken by run {winner}" in str(error)
    assert not list((tmp_path / str(loser)).iterdir())


def test_a_killed_launcher_holds_nothing(launcher: Launched, locks: Path) -> None:
    process, folder, port = launcher
    state = json.loads((folder / STATE).read_text())
    left = trees.members({}, state["run_id"])
    process.kill()
    process.wait()
    wait_gone(left)
    assert list(locks.iterdir()), "its files are still there"
    with running(one(port), folder) as again:
        assert again.workers[0].status == "ready"
    assert not list(locks.iterdir()), "who ends in order takes them along"


def test_locks_are_for_their_user_only(tmp_path: Path, locks: Path) -> None:
    locks.mkdir(mode=0o755)
    locks.chmod(0o755)
    with running(one(free_port()), tmp_path / "run"):
        files = [*locks.iterdir(), tmp_path / "run" / "launcher.lock"]
        assert len(files) == 2
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert locks.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_no_folder_for_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: Path
) -> None:
    locks.write_text("a file")
    with pytest.raises(LaunchError, match="set TOOLKIT_LOCKS to a folder of your own"):
        Supervisor(one(free_port()), tmp_path / "run").run()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, launcher: Launched) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not touch")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "launcher.lock").symlink_to(precious)
    with pytest.raises(LaunchError, match="cannot open the lock"):
        Supervisor(one(free_port()), folder).run()
    assert precious.read_text() == "do not touch"


def test_addresses_of_one_machine_have_ports_of_their_own(tmp_path: Path) -> None:
    """As when launchers of several hosts of a deployment are tried on one machine."""
    port = free_port()
    other = replace(worker("worker-0", port), address="127.0.0.2", node_rank=1, url=None)
    with running(one(port), tmp_path / "a"):
        assert not possible.ports(plan([other]))


def test_only_local_ports_are_locked(launcher: Launched, tmp_path: Path) -> None:
    _, _, port = launcher
    elsewhere = replace(worker("worker-1", port), local=False)
    both = plan([worker("worker-0", free_port()), elsewhere])
    supervisor = Supervisor(both, tmp_path / "second")
    thread = threading.Thread(target=lambda: supervisor.run())
    thread.start()
    supervisor.settled.wait(60)
    supervisor.request_stop(now=True)
    thread.join(60)
    assert supervisor.failure is None or "taken" not in str(supervisor.failure)


def test_a_folder_of_which_nothing_came_is_removed(
    launcher: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(possible, "quick", lambda plan: [])
    _, _, port = launcher
    with pytest.raises(LaunchError, match="is taken by run"), running(one(port)):
        pass
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("content", ["", "state.json", "letters.txt"])
def test_a_given_folder_is_closed_if_it_is_a_run_folder(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    folder.chmod(0o755)
    if content:
        (folder / content).write_text("{}")
    with running(one(free_port()), folder):
        mode = folder.stat().st_mode & 0o777
    assert mode == (0o755 if content == "letters.txt" else 0o700)


def test_folders_are_made_for_their_user(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        with running(one(free_port()), tmp_path / "given"):
            assert (tmp_path / "given").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(old)
    assert new_run_dir("x", tmp_path).stat().st_mode & 0o777 == 0o700


def test_who_has_just_locked_a_file_gets_a_moment_to_say_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "port.lock"
    winner = claims.Holder(os.getpid(), 1, "winner", "/runs/winner")
    fd = claims._lock(path)
    late = threading.Timer(0.1, os.pwrite, (fd, json.dumps(asdict(winner)).encode(), 0))
    late.start()
    try:
        with pytest.raises(claims.ClaimHeld) as held:
            claims._lock(path)
    finally:
        late.join()
        os.close(fd)
    assert held.value.holder == winner
