"""The process that a CPU worker's processes are forked from, with small ones of our own."""

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from patches.cpu import template
from tests.present import present
from tests.processes import lives
from toolkit.launch.command import source_root

# As SGLang does it: a server that chooses "spawn", starts processes, and ends on SIGQUIT.
SERVER = """
import multiprocessing, os, resource, signal, sys, time
from patches.cpu import template
def child(folder):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    at_exit = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGQUIT)]
    with open(f"{folder}/{os.getpid()}", "w") as file:
        file.write(f"{os.environ.get('LATER')} {'GONE' in os.environ} {limit} "
                   f"{os.getcwd()} {at_exit == [signal.SIG_DFL] * 2} {'early' in sys.modules}")
    if os.environ.get("DEEPER"):
        del os.environ["DEEPER"]
        multiprocessing.Process(target=child, args=(folder,)).start()
    time.sleep(60)
if __name__ == "__main__":
    template.MODULES = ("early",)
    template.start()
    folder = sys.argv[1]
    os.environ.update(LATER="yes", DEEPER="1")
    del os.environ["GONE"]
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    template._fork_from_template(lambda _: multiprocessing.set_start_method("spawn"), None)
    signal.signal(signal.SIGQUIT, lambda *_: os._exit(5))
    one = multiprocessing.Process(target=child, args=(folder,))
    one.start()
    print(one.pid, flush=True)
    one.join()
    print("ended", one.exitcode, flush=True)
    time.sleep(60)
"""


class Server:
    """`SERVER`, up, with its child and the child's child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "children"
        self.folder.mkdir()
        (folder / "early.py").touch()
        (folder / "server.py").write_text(SERVER)
        path = os.pathsep.join([str(source_root()), str(folder)])
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "server.py"), str(self.folder)],
            env=os.environ | {"PYTHONPATH": path, "GONE": "1", "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.first = psutil.Process(int(present(self.process.stdout).readline()))
        self.template = self.first.parent()
        while len(files := list(self.folder.iterdir())) < 2 or not all(
            file.stat().st_size for file in files
        ):
            assert self.process.poll() is None
            time.sleep(0.01)
        self.children = [psutil.Process(int(file.name)) for file in files]

    def assert_all_end(self) -> None:
        deadline = time.monotonic() + 10
        while any(map(lives, [*self.children, self.template])):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    up = Server(tmp_path)
    try:
        yield up
    finally:
        up.template.kill()
        up.process.kill()
        up.process.wait()
        present(up.process.stdout).close()


def test_children_have_what_the_server_has_when_it_starts_them(server: Any) -> None:
    assert server.template.ppid() == server.process.pid
    for child in server.children:
        assert child.parent() == server.template
        text = (server.folder / str(child.pid)).read_text()
        assert text == "yes False 777 / True True"


def test_only_its_user_reaches_the_template(server: Any, tmp_path: Path) -> None:
    (folder,) = tmp_path.glob("pymp-*")
    assert (folder / "template").is_socket()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_end_with_the_server(server: Any, number: Any) -> None:
    server.process.send_signal(number)
    server.process.wait(10)
    server.assert_all_end()


def test_all_end_with_the_template(server: Any) -> None:
    server.template.kill()
    server.assert_all_end()
    assert server.process.stdout.readline() == "ended 255\n"  # as the server learns it


def test_a_child_that_failed_tells_the_server(server: Any) -> None:
    server.template.send_signal(signal.SIGTERM)  # to the whole group, say: not the template's
    assert server.template.is_running()
    server.template.send_signal(signal.SIGQUIT)  # what SGLang's processes do to their parent
    assert server.process.wait(10) == 5
    server.assert_all_end()


def test_a_child_s_exit_is_seen(server: Any) -> None:
    server.first.terminate()
    assert server.process.stdout.readline() == f"ended {-signal.SIGTERM}\n"


def test_limits_are_given_as_they_are() -> None:
    restore, (environment, limits) = template.Surroundings().__reduce__()
    assert environment == dict(os.environ)
    restore(environment, limits)
    assert dict(limits)[resource.RLIMIT_NOFILE] == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_nothing_is_collected_while_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MODULES", ("one", "two"))
    collecting = []
    monkeypatch.setattr(
        template.importlib,  # type: ignore[attr-defined]
        "import_module",
        lambda name: collecting.append((name, gc.isenabled())),
    )
    assert gc.isenabled()
    template.preload()
    assert collecting == [("one", False), ("two", False)] and gc.isenabled()
    gc.disable()
    try:
        template.preload()
        assert not gc.isenabled(), "somebody else had turned it off"
    finally:
        gc.enable()
