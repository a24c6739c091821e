"""Workers forked from one process that has imported for all, with small modules of our own."""

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.present import present
from tests.processes import lives
from toolkit.launch.command import source_root
from toolkit.preloaded.client import Different, Forked, Preloaded, State

# As patches/preloaded.py, with a module of ours in SGLang's place.
SERVER = """
import socket, sys
from toolkit.preloaded.reads import Reads
from toolkit.preloaded.server import serve
from toolkit.preloaded import shown
shown.begin("stand-in")
reads = Reads()
with reads.recorded():
    import early
serve(socket.socket(fileno=int(sys.argv[1])), reads)
"""
EARLY = """
import os
LEVEL = os.environ.get("EARLY_LEVEL")
TESTED = os.environ.get("PYTEST_CURRENT_TEST")
os.environ["BY_EARLY"] = "yes"
"""
CHILD = """
import atexit, json, multiprocessing, os, random, resource, signal, sys, time
if __name__ == "__main__":
    print(json.dumps({
        "environment": dict(os.environ),
        "argv": sys.argv[1:],
        "folder": os.getcwd(),
        "path": sys.path[0],
        "umask": os.umask(0o22),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "group": os.getpgrp() == os.getpid(),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "early": "early" in sys.modules,
        "main": sys.modules["__main__"].__spec__.name,
        "multiprocessing": multiprocessing.parent_process() is None,
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{n}")),
        "signals": [str(signal.getsignal(n)) for n in (15, 3, 13, 17)],
        "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "random": random.random(),
    }), flush=True)
    atexit.register(print, "at exit", flush=True)
    how = sys.argv[-1]
    if how.isdigit():
        sys.exit(int(how))
    if how == "words":
        sys.exit("why it ended")
    if how == "raise":
        raise ValueError("wrong")
    while True:
        time.sleep(60)
"""

LAUNCHER = """
import os, sys
sys.path.insert(0, {project!r})
from pathlib import Path
from tests.unit.preloaded.test_forking import Launcher
launcher = Launcher(Path(sys.argv[1]))
launcher.become_ready()
children = [launcher.fork("sleep")[0].pid for _ in range(2)]
print(launcher.preloaded.pid, *children, flush=True)
import time
time.sleep(60)
"""


class Launcher:
    """What `toolkit.launch.fleet` does with a preloaded process, in a folder with our modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("early", EARLY), ("child", CHILD), ("server", SERVER)):
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        self.selector = selectors.DefaultSelector()
        self.events: list[str] = []
        path = os.pathsep.join([str(source_root()), str(folder)])
        self.environment = {**os.environ, "PYTHONPATH": path, "EARLY_LEVEL": "3"}
        self.server = [sys.executable, "-m", "server"]
        self.preloaded = Preloaded(
            self.start, lambda _pid: None, self.selector, self.events.append, 60.0
        )

    def start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.server, str(theirs.fileno())],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )

    def step(self) -> None:
        self.preloaded.tick(time.monotonic())
        for key, _ in self.selector.select(0.05):
            key.data()

    def become_ready(self) -> None:
        wait(lambda: self.step() or self.preloaded.state is State.READY)  # type: ignore[func-returns-value]

    def fork(self, *arguments: str, **environment: str) -> tuple[Forked, Path]:
        log = self.folder / f"log-{time.monotonic_ns()}"
        command = (sys.executable, "-m", "child", *arguments)
        with log.open("wb") as out:
            forked = self.preloaded.fork(
                "child", command, {**self.environment, **environment}, out.fileno()
            )
        return forked, log


def wait(done: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def said(log: Path) -> dict[str, Any]:
    wait(lambda: "\n" in log.read_text())
    return json.loads(log.read_text().splitlines()[0])


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    one = Launcher(tmp_path)
    try:
        one.become_ready()
        yield one
    finally:
        one.preloaded.close()
        one.selector.close()


def test_a_forked_process_has_what_a_started_one_has(launcher: Launcher) -> None:
    arguments = ["--port", "1", "sleep"]
    extra = {"ONLY": "mine", "STRANGE": "a\nb=c \udcff"}
    command = [sys.executable, "-m", "child", *arguments]
    plain = subprocess.Popen(
        command,
        env=launcher.environment | extra,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        text=True,
    )
    other, forked = {}, None
    try:
        other = json.loads(present(plain.stdout).readline())
        forked, log = launcher.fork(*arguments, **extra)
        mine = said(log)
        assert psutil.Process(forked.pid).cmdline() == command
        assert _environ(forked.pid) == mine["environment"]
        title, *rest = psutil.Process(launcher.preloaded.pid).cmdline()
        assert title == "stand-in" and not any(rest)
        assert _environ(present(launcher.preloaded.pid)) == launcher.environment
    finally:
        plain.kill()
        plain.wait()
        present(plain.stdout).close()
        if forked:
            forked.kill()
    assert forked.wait(10) == -signal.SIGKILL
    assert mine.pop("early") is True and other.pop("early") is False
    assert mine.pop("environment") == other.pop("environment") | {"BY_EARLY": "yes"}
    assert mine.pop("random") != other.pop("random")
    # Standard input, its output twice, and what lists them: no socket, nobody else's log.
    assert [name for name in mine.pop("descriptors") if not name.startswith("/proc/")] == sorted(
        ["/dev/null", str(log), str(log)]
    )
    other.pop("descriptors")
    assert mine == other
    assert mine["parent"] == os.getpid() and mine["main"] == "child"


def test_limits_mask_and_folder_of_the_moment(launcher: Launcher, tmp_path: Path) -> None:
    before, limit = Path.cwd(), resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(0o27)
    try:
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (321, limit[1]))
        forked, log = launcher.fork("0")
    finally:
        os.umask(umask)
        os.chdir(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    seen = said(log)
    assert forked.wait(10) == 0
    assert (seen["folder"], seen["umask"], seen["limit"]) == (str(tmp_path), 0o27, [321, limit[1]])


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [("0", 0, ""), ("78", 78, ""), ("words", 1, "why it ended"), ("raise", 1, "ValueError: wrong")],
)
def test_exit_status_and_last_words(launcher: Launcher, how: str, status: int, words: str) -> None:
    forked, log = launcher.fork(how)
    assert forked.wait(10) == status
    text = log.read_text()
    assert words in text and "at exit" in text


def test_generators_differ_between_forked_processes(launcher: Launcher) -> None:
    logs = [launcher.fork("0") for _ in range(2)]
    assert len({said(log)["random"] for _, log in logs}) == 2
    assert [forked.wait(10) for forked, _ in logs] == [0, 0]


def test_a_variable_that_was_read_at_import_must_be_the_same(launcher: Launcher) -> None:
    for other in ({"EARLY_LEVEL": "4"}, {"OMP_NUM_THREADS": "61"}):
        with pytest.raises(Different, match=next(iter(other))):
            launcher.fork("0", **other)
    forked, _ = launcher.fork("0", NOT_READ="x", PYTEST_CURRENT_TEST="another")  # it goes on
    assert forked.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_forked_outlives_it_and_another_one_is_started(
    launcher: Launcher, number: Any
) -> None:
    forked, log = launcher.fork("sleep")
    said(log)
    first = launcher.preloaded.pid
    os.kill(present(first), number)
    wait(lambda: launcher.step() or launcher.preloaded.state is not State.READY)  # type: ignore[func-returns-value]
    launcher.become_ready()
    assert launcher.preloaded.pid != first
    assert forked.poll() is None
    second, log = launcher.fork("0")
    assert second.wait(10) == 0
    forked.send_signal(signal.SIGTERM)
    assert forked.wait(10) == -signal.SIGTERM


def test_one_that_hangs_is_replaced(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(present(launcher.preloaded.pid), signal.SIGSTOP)
    with monkeypatch.context() as short, pytest.raises(OSError):
        short.setattr("toolkit.preloaded.client.FORK_S", 0.3)
        launcher.fork("0")
    launcher.become_ready()
    forked, _ = launcher.fork("0")
    assert forked.wait(10) == 0


def test_after_two_failed_imports_workers_start_without_it(launcher: Launcher) -> None:
    (launcher.folder / "early.py").write_text("raise SystemExit(3)")
    os.kill(present(launcher.preloaded.pid), signal.SIGKILL)
    wait(lambda: launcher.step() or launcher.preloaded.state is State.GIVEN_UP)  # type: ignore[func-returns-value]
    assert "workers start without it" in launcher.events[-1]


@pytest.mark.parametrize("first", ["launcher", "preloaded"])
def test_no_orphan_when_the_launcher_is_killed(tmp_path: Path, first: str) -> None:
    two = []
    for name in ("one", "two"):  # side by side
        (tmp_path / name).mkdir()
        code = LAUNCHER.format(project=str(source_root()))
        one = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / name)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(source_root())},
        )
        two.append(
            (one, [psutil.Process(int(pid)) for pid in present(one.stdout).readline().split()])
        )
    try:
        (killed, members), (_, others) = two
        if first == "preloaded":
            members[0].kill()
        killed.kill()
        killed.wait()
        wait(lambda: not any(map(lives, members)))
        assert all(map(lives, others))
    finally:
        for one, members in two:
            one.kill()
            one.wait()
            present(one.stdout).close()
            wait(lambda members=members: not any(map(lives, members)))  # type: ignore[misc]


def _environ(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(line).split("=", 1) for line in lines if line)


def test_a_forked_process_may_change_its_title(launcher: Launcher) -> None:
    (launcher.folder / "child.py").write_text(
        "import os, sys, time\nfrom setproctitle import setproctitle\n"
        "from toolkit.preloaded import shown\n"
        "shown.title_range()\nsetproctitle('sglang::scheduler')\n"
        "print('{}', flush=True)\ntime.sleep(60)\n"
    )
    forked, log = launcher.fork("sleep", ONLY="mine")
    try:
        said(log)
        assert psutil.Process(forked.pid).cmdline()[0].rstrip() == "sglang::scheduler"
        assert _environ(forked.pid)["ONLY"] == "mine"
    finally:
        forked.kill()
        forked.wait(10)
