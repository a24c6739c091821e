"""Python code in a process of its own that has SGLang imported already.

Importing SGLang takes ten seconds of CPU, and code that hooks it needs a fresh process. So one
process imports it for a whole test run, as a CPU worker's template does (`patches.cpu.template`),
and forks for each piece.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tests import scope
from toolkit.preloaded.server import die_with_parent

PROJECT = Path(__file__).resolve().parents[1]

CPU_ENVIRONMENT = {
    "TOOLKIT_PATCHES": "1",
    "TOOLKIT_DEVICE": "cpu",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
}

_server: subprocess.Popen[str] | None = None


def run_python(
    code: str, arguments: Sequence[str] = (), given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `python -c code arguments...` with `given` on standard input, in the project's folder."""
    scope.refuse_sglang()
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
        server = _running()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(task) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, f"the process that has imported SGLang ended ({server.wait()})"
        said = [files[name].read_text(errors="replace") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(["python", "-c", code, *arguments], int(answer), *said)


def _running() -> subprocess.Popen[str]:
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen(
            [sys.executable, "-m", "tests.sglang_python"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            env=os.environ | CPU_ENVIRONMENT,
        )
        atexit.register(_server.kill)
    return _server


def _serve() -> None:
    from patches import stubs
    from patches.cpu import template

    die_with_parent()
    stubs.put_on_path()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    template.preload()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it left behind
        print(status, file=answers, flush=True)


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
    _serve()
