"""The launcher's side: keep one preloaded process, and have workers forked from it.

What is forked becomes a child of this process, as if it had been started here: this process asks
the kernel for that (PR_SET_CHILD_SUBREAPER). It then inherits what its dying children leave
behind, too; `reap` takes those out of the process table.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from toolkit.preloaded import message

PR_SET_CHILD_SUBREAPER = 36
FORK_S = 10.0
"""How long a fork may take; it takes some 30 ms."""
TRIES = 2
"""How often it may end or hang while it imports; then workers are started without it."""

_users = 0
_lock = threading.Lock()


class State(StrEnum):
    """Where the preloaded process is in its life."""

    GONE = "gone"
    IMPORTING = "importing"
    READY = "ready"
    GIVEN_UP = "given up"


class Different(Exception):
    """This process cannot be forked: modules have read variables that differ for it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


class Forked:
    """A child of this process that another one has forked; of `subprocess.Popen` what is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """As `Popen.poll`."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else took its status
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`: nothing once it has been waited for."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def reap(group: int) -> None:
    """Forget the dead of a process group that this process has inherited."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


class Preloaded:
    """The preloaded process of one run. Used by one thread, which must outlive it."""

    def __init__(
        self,
        start: Callable[[socket.socket], subprocess.Popen[bytes]],
        ended: Callable[[int], None],
        selector: selectors.BaseSelector,
        changed: Callable[[str], None],
        wait_limit: float,
    ) -> None:
        """`wait_limit`: how many seconds the imports may take."""
        self._wait_limit = wait_limit
        self._start = start
        self._ended = ended
        self._selector = selector
        self._changed = changed
        self._failures = 0
        self._since = 0.0
        self._sock: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.state = State.GONE
        adopt(+1)

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is none."""
        return self.process.pid if self.process else None

    @property
    def timer(self) -> float | None:
        """When (monotonic s) `tick` has something to do beside its turn."""
        return self._since + self._wait_limit if self.state is State.IMPORTING else None

    def tick(self, now: float) -> None:
        """Start one where there is none; give up on one that hangs."""
        if self.state is State.IMPORTING and now - self._since > self._wait_limit:
            self._drop(f"has not imported SGLang within {self._wait_limit:.0f} s")
        if self.state is State.GONE:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.process = self._start(theirs)
            except OSError as error:
                ours.close()
                self._failed(f"cannot be started ({error.strerror})")
                return
            finally:
                theirs.close()
            self._sock, self._since, self.state = ours, now, State.IMPORTING
            self._selector.register(ours, selectors.EVENT_READ, self._heard)

    def fork(
        self, module: str, command: tuple[str, ...], environment: Mapping[str, str], output: int
    ) -> Forked:
        """A child of this process that runs `module` and leads a process group.

        Raises:
            Different: it has to be started in the plain way.
            OSError: the preloaded process is not there or does not answer, which ends it.
        """
        if self.state is not State.READY or self._sock is None:
            raise OSError(0, "the preloaded process is not ready")
        at = command.index(module) + 1
        try:
            start = message.Start(
                parent=os.getpid(),
                module=module,
                command=command,
                arguments=command[at:],
                environment=environment,
                **message.surroundings(),
            )
            self._sock.settimeout(FORK_S)
            message.send(self._sock, start, output)
            answer = self._sock.recv(message.LIMIT)
            if not answer:
                raise OSError(0, "the preloaded process has ended")
            said = json.loads(answer)
            if "different" in said:
                raise Different(said["different"])
            if "error" in said:
                raise OSError(0, said["error"])
            self._sock.send(message.GO)
        except OSError as error:
            self._drop(f"did not fork a worker ({error.strerror or error})")
            raise
        return Forked(said["pid"])

    def close(self) -> None:
        """End it. What it has forked goes on."""
        self._end()
        self.state = State.GIVEN_UP
        adopt(-1)

    def _heard(self) -> None:
        assert self._sock is not None
        try:
            word = self._sock.recv(message.LIMIT)
        except OSError:
            word = b""
        if word == message.READY:
            self.state, self._failures = State.READY, 0
            took = time.monotonic() - self._since
            self._changed(f"SGLang is imported after {took:.1f} s; workers are forked")
        else:
            self._drop("was gone")

    def _drop(self, why: str) -> None:
        importing = self.state is State.IMPORTING
        self._end()
        self.state = State.GONE
        if importing:
            self._failed(why)
        else:
            self._changed(f"the preloaded process {why}; starting another")

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= TRIES:
            self.state = State.GIVEN_UP
        then = "workers start without it" if self.state is State.GIVEN_UP else "starting another"
        self._changed(f"the preloaded process {why}; {then} (see preloaded.log)")

    def _end(self) -> None:
        if self._sock is not None:
            self._selector.unregister(self._sock)
            self._sock.close()
            self._sock = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            reap(self.process.pid)
            self._ended(self.process.pid)
            self.process = None


def adopt(users: int) -> None:
    """Add to the users: with the first this process becomes its descendants' reaper, with the last
    it stops. A `Preloaded` is one of them as long as it is open."""
    global _users
    with _lock:
        before, _users = _users, _users + users
        if bool(before) != bool(_users):
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(PR_SET_CHILD_SUBREAPER, int(bool(_users)), 0, 0, 0) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
