"""A launcher on a full disk, or in a folder that somebody removes: real processes, a real limit."""

import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port
from tests.present import present
from tests.unit.launch.runs import Events, toolkit
from tests.unit.launch.stand_ins import SERVER, plan, two_workers, wait_gone, worker
from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.running import running
from toolkit.launch.state import read_state
from toolkit.settings.processes import LogFiles, Restart

# Says much on start, and as many numbered lines of 100 bytes as a POST asks for.
TALKER = SERVER.replace(
    '        self.rfile.read(int(self.headers["Content-Length"]))\n',
    '        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))\n'
    '        for n in range(said.get("first", 0), said.get("last", 0)):\n'
    '            print(f"line {n:06d} " + "x" * 87, flush=True)\n',
).replace('print("serving"', 'print("x" * 9999, "\\nserving"')
assert TALKER.count("line {n") == 1 and TALKER.count("9999") == 1

LAUNCHER = """
import sys
from pathlib import Path
from tests.unit.launch.stand_ins import two_workers
from tests.unit.launch.test_disk import TALKER
from toolkit.cli.launch import _stop_on_signals
from toolkit.launch.progress import ProgressLines
from toolkit.launch.supervisor import Supervisor
class Report(ProgressLines):
    def event(self, text):
        print(text, flush=True)
supervisor = Supervisor(two_workers(TALKER), Path(sys.argv[1]), Report())
_stop_on_signals(supervisor)
supervisor.run()
"""


class Launcher:
    """A launcher in a process of its own, whose events a test waits for."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(run)],
            cwd=source_root(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen = []  # type: ignore[var-annotated]
        self.wait_for("ready: ")

    def wait_for(self, *parts: Any) -> None:
        """Read events until each of the parts has come, in any order."""
        missing = list(parts)
        while missing:
            line = present(self.process.stdout).readline()
            assert line, f"the launcher ended; no {missing} in {self.seen}"
            self.seen.append(line)
            missing = [part for part in missing if part not in line]

    @property
    def pump(self) -> Any:
        (pump,) = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "toolkit.launch.logpump" in child.cmdline()
        ]
        return pump

    def limit(self, what: Any, number: Any) -> None:
        """Set a soft limit of the launcher and of the process that writes the logs."""
        for pid in (self.process.pid, self.pump.pid):
            hard = resource.prlimit(pid, what)[1]
            resource.prlimit(pid, what, (hard if number is None else number, hard))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Any]:
    up = Launcher(tmp_path / "run")
    try:
        yield up
    finally:
        up.process.kill()
        up.process.wait()
        present(up.process.stdout).close()


def rows(run: Any) -> Any:
    return {row["name"]: row for row in read_state(run)["workers"]}


def ask(url: Any, **body: Any) -> Any:
    import json

    with urllib.request.urlopen(f"{url}/generate", json.dumps(body).encode(), 30) as answer:
        return answer.status


@pytest.mark.slow
def test_a_full_disk_and_a_dead_worker_do_not_end_the_deployment(launcher: Any) -> None:
    before = rows(launcher.run)
    launcher.limit(resource.RLIMIT_FSIZE, 0)  # every write to a file fails, as on a full disk
    os.kill(before["worker-1"]["pid"], signal.SIGKILL)
    launcher.wait_for("state cannot be written", "logs cannot be written", "worker-1: ready")
    assert ask(before["worker-0"]["url"], last=100) == 200  # says 10 KB on the way
    assert ask(before["worker-1"]["url"]) == 200
    assert rows(launcher.run) == before  # what could be written last

    launcher.limit(resource.RLIMIT_FSIZE, None)
    launcher.wait_for("state is written again", "logs are written again")
    after = rows(launcher.run)
    assert after["worker-1"]["pid"] != before["worker-1"]["pid"]
    assert after["worker-1"]["status"] == "ready"
    for name in after:
        log = (launcher.run / f"{name}.log").read_text()
        assert re.search(r"toolkit: \d{4,} bytes of output are missing here: File too large", log)
    left = [p.name for p in launcher.run.iterdir()]
    assert sorted(left) == [
        "launcher.lock",
        "plan.json",
        "state.json",
        "worker-0.log",
        "worker-1.log",
    ]


@pytest.mark.slow
def test_a_removed_run_folder_is_made_again(launcher: Any) -> None:
    before = rows(launcher.run)
    shutil.rmtree(launcher.run)
    os.kill(before["worker-1"]["pid"], signal.SIGKILL)
    launcher.wait_for("were removed; made them again", "worker-1: ready")
    assert rows(launcher.run)["worker-1"]["status"] == "ready"
    assert stat.S_IMODE(launcher.run.stat().st_mode) == 0o700
    assert (launcher.run / "plan.json").is_file()
    assert "serving" in toolkit("logs", "worker-1", "--run", str(launcher.run)).stdout
    assert toolkit("stop", "--run", str(launcher.run)).returncode == 0


@pytest.mark.slow
def test_a_removed_run_folder_is_seen_while_nothing_happens(launcher: Any) -> None:
    shutil.rmtree(launcher.run)
    launcher.wait_for("were removed; made them again")
    assert read_state(launcher.run)["phase"] == "ready"


def test_no_descriptors_for_a_worker_is_a_death_like_another(launcher: Any) -> None:
    worker = rows(launcher.run)["worker-1"]
    fds = psutil.Process(launcher.process.pid).num_fds()
    hard = resource.prlimit(launcher.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(launcher.process.pid, resource.RLIMIT_NOFILE, (fds - 2, hard))
    os.kill(worker["pid"], signal.SIGKILL)
    launcher.wait_for("worker-1: cannot be started (Too many open files)")
    resource.prlimit(launcher.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    launcher.wait_for("worker-1: ready")
    assert ask(worker["url"]) == 200


def test_a_start_on_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = pytest.raises(LaunchError, match=r"(?s)cannot be the run folder: .*make room")
    with said, running(two_workers(), tmp_path / "file" / "run"):
        pass


def test_workers_go_on_talking_while_the_launcher_is_stopped(launcher: Any) -> None:
    url = rows(launcher.run)["worker-0"]["url"]
    launcher.process.send_signal(signal.SIGSTOP)
    try:
        assert ask(url, last=50_000) == 200  # 5 MB: pipes hold 1
    finally:
        launcher.process.send_signal(signal.SIGCONT)
    assert (
        "line 049999" in toolkit("logs", "worker-0", "-n", "1", "--run", str(launcher.run)).stdout
    )


@pytest.mark.slow
def test_the_log_writer_is_replaced_when_it_dies(launcher: Any) -> None:
    url = rows(launcher.run)["worker-0"]["url"]
    launcher.pump.kill()
    assert ask(url, last=2000) == 200
    launcher.wait_for("the process that writes the logs was gone; started a new one")
    assert ask(url, first=2000, last=2001) == 200
    launcher.process.send_signal(signal.SIGTERM)
    launcher.process.wait()
    log = (launcher.run / "worker-0.log").read_text()
    assert [int(n) for n in re.findall(r"line (\d+)", log)] == list(range(2001))


@pytest.mark.slow
def test_the_log_writer_is_replaced_when_it_hangs(launcher: Any) -> None:
    url = rows(launcher.run)["worker-0"]["url"]
    launcher.pump.send_signal(signal.SIGSTOP)
    assert ask(url, last=30_000) == 200  # three times what a pipe holds
    launcher.wait_for("the process that writes the logs hung; started a new one")
    launcher.process.send_signal(signal.SIGTERM)
    launcher.process.wait()
    assert "line 029999" in (launcher.run / "worker-0.log").read_text()


def test_the_log_writer_ends_with_the_launcher(launcher: Any) -> None:
    pump = trees.look(launcher.pump.pid)
    launcher.process.kill()
    launcher.process.wait()
    wait_gone([pump])  # type: ignore[list-item]


@pytest.mark.slow
def test_logs_rotate_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    talking = plan([worker("worker-0", free_port(), TALKER)])
    object.__setattr__(talking, "logs", LogFiles(max_mib=0.05, keep=2))
    old = os.umask(0)
    try:
        with running(talking, run) as up:
            follower = subprocess.Popen(
                [sys.executable, "-m", "toolkit", "logs", "-f", "-n", "1", "--run", str(run)],
                cwd=source_root(),
                stdout=subprocess.PIPE,
                text=True,
            )
            seen: list[Any] = []
            try:
                assert present(follower.stdout).readline() == "serving\n"
                for first in range(0, 2000, 200):  # 200 KB in all; follow looks every 0.3 s
                    ask(up.workers[0].url, first=first, last=first + 200)
                    while not seen or seen[-1] < first + 199:
                        seen += map(
                            int, re.findall(r"line (\d+)", present(follower.stdout).readline())
                        )
            finally:
                follower.kill()
                follower.wait()
                present(follower.stdout).close()
            assert seen == list(range(2000))
    finally:
        os.umask(old)
    logs = sorted(p.name for p in run.glob("*.log*"))
    assert logs == ["worker-0.log", "worker-0.log.1", "worker-0.log.2"]
    for name in logs:
        assert (run / name).stat().st_size <= 0.05 * 2**20 + 101
    for path in run.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    kept = "".join((run / name).read_text() for name in reversed(logs))
    numbers = [int(n) for n in re.findall(r"line (\d+)", kept)]
    assert numbers == list(range(numbers[0], 2000))  # whole lines, none twice


def test_the_log_of_a_detached_launcher_rotates(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from toolkit.launch.logfile import rotate_own\n"
        "for n in range(300):\n"
        "    print('event', n, file=sys.stderr, flush=True)\n"
        "    rotate_own(pathlib.Path(sys.argv[1]), 1000, 1)\n"
    )
    log = tmp_path / "launcher.log"
    with log.open("ab") as out:
        command = [sys.executable, "-c", code, str(log)]
        subprocess.run(command, stderr=out, check=True, cwd=source_root())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["launcher.log", "launcher.log.1"]
    assert "event 299" in log.read_text()
    assert all(p.stat().st_size < 1100 for p in tmp_path.iterdir())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_dead_worker_s_last_words_are_in_the_message(tmp_path: Path) -> None:
    code = "import sys; print('x' * 200_000); print('the reason'); sys.exit(3)"
    events = Events()
    broken = plan([worker("worker-0", free_port(), code)], Restart(max_restarts=0))
    with pytest.raises(LaunchError, match="the reason"), running(broken, tmp_path, events):
        pass
