"""What the mutations are sent to: a deployment behind its router, or one plain SGLang server."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.e2e.worker_process import CPU_ENVIRONMENT
from tests.ports import free_port
from toolkit.embedded import model_path
from toolkit.launch.command import CRASH_ENV
from toolkit.launch.running import Running

START_S = 400.0


class Target(Protocol):
    """A server, and how to see that a part of it died."""

    headers: dict[str, str]

    @property
    def url(self) -> str:
        """Where bodies are posted to."""

    def pids(self) -> dict[str, int | None]:
        """The workers' processes as they are now."""

    def recover(self) -> None:
        """Wait until everything serves again."""

    def last_words(self) -> str:
        """What the log says about the death that was last."""


class Deployment:
    """Real workers behind the router; the supervisor starts the dead again."""

    def __init__(self, running: Running, headers: dict[str, str]) -> None:
        self.running = running
        self.headers = headers

    @property
    def url(self) -> str:
        """The router's."""
        return self.running.router_url

    def pids(self) -> dict[str, int | None]:
        """Of each worker: the pid, None between its death and its restart."""
        return {worker.name: worker.pid for worker in self.running.workers}

    def recover(self) -> None:
        """Wait until every worker is ready."""
        for worker in self.running.workers:
            self.running.wait_ready(worker.name, timeout=START_S)

    def last_words(self) -> str:
        """The last exception in any worker's log."""
        logs = sorted((worker.log for worker in self.running.workers), key=_changed)
        return next((words for log in reversed(logs) if (words := exception_in(log))), "")


class Worker:
    """One worker of a deployment, spoken to without the router; the supervisor restarts it."""

    def __init__(self, running: Running, name: str, headers: dict[str, str]) -> None:
        self.running = running
        self.name = name
        self.headers = headers

    @property
    def url(self) -> str:
        """The worker's own."""
        return self.running.worker(self.name).url

    def pids(self) -> dict[str, int | None]:
        """Of this worker."""
        return {self.name: self.running.worker(self.name).pid}

    def recover(self) -> None:
        """Wait until it is ready."""
        self.running.wait_ready(self.name, timeout=START_S)

    def last_words(self) -> str:
        """The last exception in its log."""
        return exception_in(self.running.worker(self.name).log)


class Single:
    """One SGLang server, not in PD, started again when it died.

    A second one waits to take its place: a start takes a minute. `module` is what is run:
    `tests.benchmarks.plain_server` or, with our patches, `patches.worker`.
    """

    def __init__(self, folder: Path, module: str) -> None:
        self.folder = folder
        self.module = module
        self.headers: dict[str, str] = {}
        self._started = 0
        self._spare = self._start()
        self._current = self._spare
        self.recover()

    @property
    def url(self) -> str:
        """Of the one that serves."""
        return f"http://127.0.0.1:{self._current[1]}"

    def pids(self) -> dict[str, int | None]:
        """Of the one that serves; None when it has ended."""
        process = self._current[0]
        return {"server": process.pid if process.poll() is None else None}

    def last_words(self) -> str:
        """The last exception in its log."""
        return exception_in(self._log(self._current[2]))

    def recover(self) -> None:
        """End what is left of the current one; the spare takes over, another is started."""
        if self._current is not self._spare:
            _end(self._current[0])
        self._current = self._spare
        deadline = time.monotonic() + START_S
        while not _answers(self.url):
            if self._current[0].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it does not start: {self._log(self._current[2])}")
            time.sleep(0.5)
        self._spare = self._start()

    def close(self) -> None:
        """End both."""
        for process, _, _ in (self._current, self._spare):
            _end(process)

    def _start(self) -> tuple[subprocess.Popen[bytes], int, int]:
        port, number = free_port(), self._started
        self._started += 1
        command = [
            sys.executable, "-m", self.module, "--model-path", str(model_path()),
            "--served-model-name", "embedded", "--device", "cpu",
            "--attention-backend", "torch_native", "--dtype", "float32", "--host", "127.0.0.1",
            "--port", str(port), "--max-total-tokens", "8192", "--max-running-requests", "16",
            "--load-snapshot-publish-interval", "1", "--sleep-on-idle",
        ]  # fmt: skip
        with self._log(number).open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=os.environ | CPU_ENVIRONMENT | CRASH_ENV,
                start_new_session=True,
            )
        return process, port, number

    def _log(self, number: int) -> Path:
        return self.folder / f"server-{number}.log"


@contextlib.contextmanager
def single(folder: Path, module: str) -> Iterator[Single]:
    """A server of `module`, ended on the way out."""
    server = Single(folder, module)
    try:
        yield server
    finally:
        server.close()


def exception_in(log: Path) -> str:
    """The last line of the last traceback in a scheduler's log."""
    text = log.read_text(errors="replace")[-200_000:]
    lines = text.rsplit("Traceback (most recent call last)", 1)[-1].splitlines()
    if len(lines) == len(text.splitlines()):
        return ""
    found = [line for line in lines if re.match(r"^[A-Za-z_.]+(Error|Exception|Exit)\b", line)]
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    return f"{found[0] if found else lines[-1]} ({frames[-1] if frames else ''})"[:500]


def _changed(log: Path) -> float:
    return log.stat().st_mtime


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
