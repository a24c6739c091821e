"""Python code in a process of its own that has SGLang imported already.

Importing SGLang takes ten seconds of CPU, and code that hooks it needs a fresh process. So one
process imports it for a whole test run, as a CPU worker's template does (`patches.cpu.template`),
and forks for each piece. The processes of a run (`-n`) share it: it listens on a Unix socket.
"""

import atexit
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from toolkit.preloaded.server import die_with_parent
from toolkit.setup.scopes import FAST, SCOPE

PROJECT = Path(__file__).resolve().parents[1]

CPU_ENVIRONMENT = {
    "TOOLKIT_PATCHES": "1",
    "TOOLKIT_DEVICE": "cpu",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
}

FOLDER = "TOOLKIT_TEST_SGLANG"
"""In the environment of the processes of a run: where the socket of the one with SGLang lies."""
STARTS_S = 300.0


def share(folder: Path) -> None:
    """Have all processes that this one starts use one process with SGLang."""
    os.environ[FOLDER] = str(folder)


def run_python(
    code: str, arguments: Sequence[str] = (), given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `python -c code arguments...` with `given` on standard input, in the project's folder."""
    _refuse_in_a_fast_run()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in ("given", "stdout", "stderr")}
        for name, file in files.items():
            file.write_text(given or "" if name == "given" else "")
        task = {
            "code": code,
            "arguments": ["-c", *arguments],
            "environment": os.environ | CPU_ENVIRONMENT | environment,
            "files": {name: str(file) for name, file in files.items()},
        }
        answer = _ask(json.dumps(task))
        assert answer, "the process that has imported SGLang ended"
        said = [files[name].read_text(errors="replace") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(["python", "-c", code, *arguments], int(answer), *said)


def _refuse_in_a_fast_run() -> None:
    if os.environ.get(SCOPE) == FAST:
        pytest.fail("this test starts SGLang: mark it `sglang`, a fast run goes without those")


def found_by(
    code: str, arguments: Sequence[str] = (), given: str | None = None, **environment: str
) -> Any:
    """What the last line says that `code` prints, as JSON; the test fails where `code` does."""
    done = run_python(code, arguments, given, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1].removeprefix("say "))


def _ask(task: str) -> str:
    """The exit status of a task, as text; empty where the server ended meanwhile."""
    with _connected() as server, server.makefile("rw") as lines:
        lines.write(task + "\n")
        lines.flush()
        return lines.readline().strip()


def _connected() -> socket.socket:
    """A connection to the server; whoever comes first starts it."""
    if FOLDER not in os.environ:  # no run of several processes
        folder = tempfile.TemporaryDirectory(prefix="toolkit-sglang-")
        atexit.register(folder.cleanup)
        share(Path(folder.name))
    path = Path(os.environ[FOLDER]) / "socket"
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connect(path)
        if connection is None:
            path.unlink(missing_ok=True)
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.sglang_python", str(path)],
                stdin=subprocess.DEVNULL,
                cwd=PROJECT,
                env=os.environ | CPU_ENVIRONMENT,
            )
            atexit.register(server.kill)
            deadline = time.monotonic() + STARTS_S
            while (connection := _connect(path)) is None:
                assert server.poll() is None, f"it ended at once ({server.returncode})"
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.05)
    return connection


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _serve(path: str) -> None:
    """Fork for each connection, and tell it the exit status; several at a time."""
    from patches import stubs
    from patches.cpu import template

    die_with_parent()
    stubs.put_on_path()
    os.dup2(2, 1)  # what an import prints is no answer
    template.preload()
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    _begin(listener.accept()[0], selector)
                else:
                    selector.unregister(key.fileobj)
                    _end(*key.data)


def _begin(connection: socket.socket, selector: selectors.BaseSelector) -> None:
    with connection.makefile("r") as lines:
        line = lines.readline()
    if not line:  # it only looked whether somebody listens
        connection.close()
        return
    pid = os.fork()
    if pid == 0:
        _close_others()
        _run(json.loads(line))
    ended = os.pidfd_open(pid)
    selector.register(ended, selectors.EVENT_READ, (pid, ended, connection))


def _end(pid: int, ended: int, connection: socket.socket) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ended)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it left behind
    with connection, suppress(OSError):
        connection.sendall(f"{status}\n".encode())


def _close_others() -> None:
    """Of the child: the server's sockets, which tests that count descriptors must not see."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        number = int(name)
        with suppress(OSError):
            if number > 2 and os.readlink(f"/proc/self/fd/{number}").startswith(  # noqa: PTH115
                ("socket:", "anon_inode:[eventpoll]", "anon_inode:[pidfd]")
            ):
                os.close(number)


def _run(task: dict[str, Any]) -> NoReturn:

    os.setpgid(0, 0)
    die_with_parent()
    for number, name in enumerate(("given", "stdout", "stderr")):
        mode = os.O_RDONLY if name == "given" else os.O_WRONLY | os.O_APPEND
        os.dup2(os.open(task["files"][name], mode), number)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.argv = task["arguments"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status: Any = 0
    signal.alarm(300)
    try:
        exec(compile(task["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
