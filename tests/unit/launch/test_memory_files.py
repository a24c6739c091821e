"""What dead workers leave in shared memory: real files, real processes, SIGKILL."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.present import present
from tests.unit.launch.runs import LAUNCHER, until
from tests.unit.launch.stand_ins import plan, worker
from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.guard import LOOK_S, LauncherGuard
from toolkit.launch.memory_files import FOLDER, LOOKS, MemoryFiles
from toolkit.launch.plan import Plan
from toolkit.launch.running import running
from toolkit.launch.scratch import scratch
from toolkit.launch.state import read_state

pytestmark = pytest.mark.touched("launching")

NAME = "sgl_shm_mq_1_"

MAPS = textwrap.dedent(
    """
    import mmap, os, sys, time
    kept = []
    for path in sys.argv[2:]:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(fd, 4096)
        if sys.argv[1] == "map":
            kept.append(mmap.mmap(fd, 4096))
    if kept:
        os.closerange(3, 20)
    print("up", flush=True)
    time.sleep(600)
    """
)
"""Has the files mapped (`map`) or open (`open`)."""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of shared memory that no other test or run looks at."""
    with tempfile.TemporaryDirectory(prefix="test-", dir=FOLDER) as name:
        yield Path(name)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the leader of a process group that has files; all end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*files: Path, how: str = "map", code: str = MAPS) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code, how, *map(str, files)],
            stdout=subprocess.PIPE,
            process_group=0,
        )
        started.append(process)
        assert present(process.stdout).readline() == b"up\n"
        return process

    yield begin
    for process in started:
        kill(process)
        present(process.stdout).close()


def of(*processes: subprocess.Popen[bytes]) -> dict[int, int]:
    """As `trees` wants them."""
    return {each.pid: present(trees.look(each.pid)).start for each in processes}


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def seen(folder: Path, *workers: subprocess.Popen[bytes]) -> MemoryFiles:
    """Files as they are known when it was looked for them."""
    files = MemoryFiles(folder)
    files.look(of(*workers))
    return files


def test_what_a_killed_worker_had_mapped_goes(folder: Path, start: Start) -> None:
    mine, others = folder / f"{NAME}a", folder / f"{NAME}b"
    one, other = start(mine), start(others)
    files = seen(folder, one, other)
    kill(one)
    files.remove(of(other))
    assert not mine.exists() and others.exists()
    kill(other)
    files.remove({})
    assert not others.exists()


CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {MAPS!r}, *sys.argv[1:]],
                         stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print("up", flush=True)
time.sleep(600)
"""
ORPHAN = f"""
import os, subprocess, sys, time
if os.fork() == 0:
    child = subprocess.Popen([sys.executable, "-S", "-c", {MAPS!r}, *sys.argv[1:]],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("code", [CHILD, ORPHAN], ids=["own session", "orphan"])
def test_what_came_of_a_worker_belongs_to_it(folder: Path, start: Start, code: str) -> None:
    file = folder / f"{NAME}a"
    leader = start(file, code=code)
    files = seen(folder, leader)
    assert trees.kill_all(of(leader)) == []
    leader.wait()
    files.remove({})
    assert not file.exists()


@pytest.mark.parametrize("how", ["map", "open"])
def test_what_somebody_still_has_stays_until_he_is_gone(
    folder: Path, start: Start, how: str
) -> None:
    file = folder / f"{NAME}a"
    one, somebody = start(file), start(file, how=how)
    files = seen(folder, one)
    kill(one)
    files.remove({})
    assert file.exists()
    kill(somebody)
    files.remove({})
    assert not file.exists()


def test_a_file_of_nobody_here_stays(folder: Path, start: Start) -> None:
    """Of a run that has ended, say: what a worker has not mapped is not known to be its."""
    strangers = folder / f"{NAME}b"
    stranger, one = start(strangers), start(folder / f"{NAME}a")
    files = seen(folder, one)
    kill(stranger)
    kill(one)
    files.remove({})
    assert list(folder.iterdir()) == [strangers]


def test_what_a_user_keeps_there_stays(folder: Path, start: Start) -> None:
    weights = folder / "model-00001.safetensors"
    one = start(weights)
    files = seen(folder, one)
    kill(one)
    files.remove({})
    assert weights.exists()


def test_what_other_users_may_open_stays(folder: Path, start: Start) -> None:
    before, since = folder / f"{NAME}a", folder / f"{NAME}b"
    one = start(before, since)
    before.chmod(0o644)
    files = seen(folder, one)
    since.chmod(0o666)
    kill(one)
    files.remove({})
    assert before.exists() and since.exists()


def test_another_file_of_the_same_name_stays(folder: Path, start: Start) -> None:
    """One that the next worker has made, under a name that it had to have."""
    file = folder / f"{NAME}a"
    one = start(file)
    files = seen(folder, one)
    kill(one)
    file.unlink()
    file.touch(0o600)
    files.remove({})
    assert file.exists()


HOLDS = """
import os, sys, time
kept = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[2:]]
print("up", flush=True)
time.sleep(600)
"""
"""As a router has the folder in which its processes count together."""


def test_the_folder_of_a_killed_router_goes_when_the_last_has_it_no_more(
    folder: Path, start: Start
) -> None:
    routers = folder / "toolkit-router-1-abc"
    routers.mkdir(mode=0o700)
    (routers / "metrics").mkdir()
    (routers / "metrics" / "counter.db").touch()
    router, other = start(routers, code=HOLDS), start(routers, code=HOLDS)
    files = seen(folder, router)
    kill(router)
    files.remove({})
    assert (routers / "metrics" / "counter.db").exists()
    kill(other)
    files.remove({})
    assert not routers.exists()


def test_a_link_is_not_followed(folder: Path, start: Start, tmp_path: Path) -> None:
    target = folder / f"{NAME}target"
    one = start(target)
    files = seen(folder, one)
    kill(one)
    kept = target.rename(folder / "kept")
    target.symlink_to(kept)
    files.remove({})
    assert kept.exists() and target.is_symlink()


def test_a_living_worker_keeps_what_it_has_not_mapped_now(folder: Path, start: Start) -> None:
    """As a message that one of its processes has written and another has yet to read."""
    file = folder / "psm_message"
    code = MAPS.replace("time.sleep(600)", "sys.stdin.readline(); kept.clear(); print(1); input()")
    one, other = start(folder / f"{NAME}a"), start_with_input(code, file)
    try:
        files = seen(folder, one, other)
        present(other.stdin).write(b"\n")
        present(other.stdin).flush()
        assert present(other.stdout).readline() == b"1\n"
        kill(one)
        files.remove(of(other))
        assert [each.name for each in folder.iterdir()] == [file.name]
    finally:
        kill(other)
        present(other.stdin).close()
        present(other.stdout).close()


def start_with_input(code: str, *files: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-u", "-c", code, "map", *map(str, files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert present(process.stdout).readline() == b"up\n"
    return process


def test_one_that_is_mapped_later_than_it_is_made_is_seen(folder: Path, start: Start) -> None:
    file, one = folder / f"{NAME}a", start()
    file.touch(0o600)
    files = seen(folder, one)
    other = start(file)
    files.look(of(one, other))
    kill(other)
    files.remove(of(one))
    assert not file.exists()


def test_where_nothing_is_made_nothing_is_read(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(folder / f"{NAME}a")
    (folder / f"{NAME}strangers").touch(0o600)
    files = seen(folder, one)
    leaders, looked = of(one), []

    def members(asked: dict[int, int]) -> list[trees.ProcessRow]:
        looked.append(asked)
        return []

    monkeypatch.setattr(trees, "members", members)
    for _ in range(LOOKS + 3):
        files.look(leaders)
    assert len(looked) == LOOKS - 1  # at the stranger's, which nobody here has mapped yet
    (folder / "core").touch(0o600)
    (folder / f"{NAME}another-users").touch(0o644)
    for _ in range(LOOKS + 3):
        files.look(leaders)
    assert len(looked) == LOOKS - 1
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("nothing has changed"))
    files.look(leaders)


PYTHONS_OWN = """
import multiprocessing, sys, time
from multiprocessing import shared_memory
context = multiprocessing.get_context("spawn")
lock = context.Lock()
memory = shared_memory.SharedMemory(create=True, size=64)
print("up", flush=True)
print(memory.name.lstrip("/"), lock._semlock.name.lstrip("/"), flush=True)
time.sleep(600)
"""


def test_what_python_itself_makes_goes(start: Start) -> None:
    """A semaphore bears another name in the kernel's list than in the folder."""
    one = start(code=PYTHONS_OWN)
    memory, lock = present(one.stdout).readline().decode().split()
    made = [FOLDER / memory, FOLDER / f"sem.{lock}"]
    files = seen(FOLDER, one)
    assert trees.kill_all(of(one)) == []  # its resource tracker, which would remove them, too
    one.wait()
    assert [each.exists() for each in made] == [True, True]
    files.remove({})
    assert [each.exists() for each in made] == [False, False]


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[LauncherGuard]:
    with scratch() as temporary:
        one = LauncherGuard("no-run-has-this-id", Path(temporary))
        yield one
        one.close()


@pytest.fixture
def file() -> Iterator[Path]:
    """A name that nobody else has, where guards look."""
    path = FOLDER / f"{NAME}test{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def watched(guard: LauncherGuard, process: subprocess.Popen[bytes]) -> None:
    ((pid, began),) = of(process).items()
    guard.add(pid, began)
    time.sleep(4 * LOOK_S)  # it looks meanwhile, and tells nobody


def test_the_guard_removes_them_when_a_worker_is_over(
    guard: LauncherGuard, start: Start, file: Path
) -> None:
    one = start(file)
    watched(guard, one)
    kill(one)
    time.sleep(2 * LOOK_S)
    assert file.exists()  # nobody has said yet that all of its processes are gone
    guard.forget(one.pid)
    until(lambda: not file.exists())


def test_the_guard_removes_them_at_the_end(guard: LauncherGuard, start: Start, file: Path) -> None:
    one = start(file)
    watched(guard, one)
    guard.close()
    assert one.wait() == -signal.SIGKILL
    assert not file.exists()


def test_another_guard_knows_them_too(guard: LauncherGuard, start: Start, file: Path) -> None:
    one = start(file)
    watched(guard, one)
    os.kill(guard.pid, signal.SIGKILL)
    until(guard.renew)
    time.sleep(4 * LOOK_S)
    kill(one)
    guard.forget(one.pid)
    until(lambda: not file.exists())


def test_the_guard_hears_a_line_that_comes_in_parts(guard: LauncherGuard, start: Start) -> None:
    one = start()
    ((pid, began),) = of(one).items()
    line = f"add {pid} {began}\n"
    pipe = guard._pipe
    for part in (line[:5], line[5:]):
        pipe.write(part)
        pipe.flush()
        time.sleep(2 * LOOK_S)
    guard.close()
    assert one.wait(10) == -signal.SIGKILL


SERVES = """
import http.server, json, mmap, os, sys
fd = os.open(f"{sys.argv[2]}{os.getpid()}", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(fd, 4096)
kept = mmap.mmap(fd, 4096)
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        data = json.dumps({"meta_info": {"completion_tokens": 4}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = answer
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def of_run(file: Path) -> Plan:
    """A worker that has a file in shared memory, named after its process."""
    one = worker("worker-0", free_port(), SERVES)
    return plan([replace(one, command=(*one.command, str(file)))])


def test_a_run_leaves_none_of_any_life_of_a_worker(file: Path, tmp_path: Path) -> None:
    with running(of_run(file), tmp_path) as up:
        first = present(up.worker("worker-0").pid)
        assert Path(f"{file}{first}").exists()
        time.sleep(4 * LOOK_S)
        os.kill(first, signal.SIGKILL)
        second = present(up.wait_ready("worker-0", 1).pid)
        until(lambda: not Path(f"{file}{first}").exists())
        assert Path(f"{file}{second}").exists()
        time.sleep(4 * LOOK_S)
    assert not Path(f"{file}{second}").exists()


KILLED = LAUNCHER.replace("two_workers()", "of_run(Path(sys.argv[2]))").replace(
    "stand_ins import two_workers", "test_memory_files import of_run"
)


def test_a_launcher_that_is_killed_leaves_none(file: Path, tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(file)],
        cwd=source_root(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in present(launcher.stdout):
            if line.startswith("ready:"):
                break
        state = read_state(tmp_path)
        own = Path(f"{file}{state['workers'][0]['pid']}")
        assert own.exists()
        time.sleep(4 * LOOK_S)
    finally:
        launcher.kill()
        launcher.wait()
        present(launcher.stdout).close()
    until(lambda: not trees.is_running(state["guard_pid"]))
    assert not own.exists()
