"""A preloaded process of the tests' own (`toolkit.preloaded`): ready when asked for, gone with the
test run. One thread uses it."""

import atexit
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from toolkit.preloaded.client import Different, Forked, Preloaded, State, adopt

ROOT = Path(__file__).resolve().parents[1]

Process = subprocess.Popen[bytes] | Forked


class Preloading:
    """Forks from `python -m module SOCKET`, which imports what its name says."""

    def __init__(
        self, module: str, wait_limit: float, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: all its variables; as this process has them when it is None."""
        self._module = module
        self._wait_limit = wait_limit
        self._environment = environment
        self._selector = selectors.DefaultSelector()
        self._one: Preloaded | None = None

    def start(
        self, module: str, *arguments: str, env: Mapping[str, str], output: IO[Any]
    ) -> Process:
        """`python -m module arguments...` in the project's folder, leading a process group; both
        its outputs go to `output`. Where a variable differs that was read at import, it is started
        plainly."""
        command = (sys.executable, "-m", module, *arguments)
        with in_project():
            try:
                return self.ready().fork(module, command, dict(env), output.fileno())
            except Different:
                return plainly(command, env, output)

    def ready(self) -> Preloaded:
        """It, once it has imported everything; another one where it was gone."""
        if self._one is None:
            self._one = Preloaded(
                self._begin, lambda _pid: None, self._selector, lambda _text: None, self._wait_limit
            )
            adopt(-1)
            atexit.register(self.close)
        while self._one.state is not State.READY:
            assert self._one.state is not State.GIVEN_UP, f"{self._module} cannot be imported"
            self._one.tick(time.monotonic())
            for key, _ in self._selector.select(0.1):
                key.data()
        return self._one

    def _begin(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        number = theirs.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", self._module, str(number)],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            process_group=0,
        )

    def close(self) -> None:
        """End it; what was forked from it goes on."""
        if self._one is not None:
            adopt(+1)
            self._one.close()
            self._one = None
            atexit.unregister(self.close)


@contextmanager
def in_project() -> Iterator[None]:
    """The project's folder is the current one, and this process adopts what is forked for it; only
    meanwhile, since what other tests leave behind is not this process's."""
    before = Path.cwd()
    os.chdir(ROOT)
    adopt(+1)
    try:
        yield
    finally:
        adopt(-1)
        os.chdir(before)


def plainly(
    command: Sequence[str], env: Mapping[str, str], output: IO[Any]
) -> subprocess.Popen[bytes]:
    """The same without a fork: it imports for itself."""
    return subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, env=env, process_group=0
    )
