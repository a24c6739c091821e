"""A tiny process between the workers' standard output and their log files.

A worker that writes to a file itself gets the errors of a full disk in its `print`, and waits for a
disk that hangs; one that writes into a pipe of the launcher waits when the launcher is stopped. So
this process, which does nothing else, always reads all pipes, and a thread writes the files
(`RotatingFile`). What cannot be written, or comes faster than the disk takes it, is dropped; the
log says how much, once it can.

It ends when nobody can write into any of the pipes any more: after the launcher and all workers.
Standard library only.
"""

import contextlib
import os
import selectors
import signal
import sys
import threading
import time
from pathlib import Path

from toolkit.launch.logfile import RotatingFile

PENDING = 4 << 20
"""Bytes of one log that wait for the disk before more of it is dropped."""
CHUNK = 1 << 16
FIRST_PAUSE, LAST_PAUSE = 1.0, 30.0
"""Seconds without a try after a failed write; doubles while it goes on failing."""
LAST_WORDS = 5.0
"""Seconds that the disk has for what is left at the end."""


class LogSink:
    """One log: what waits for the disk, and what got lost."""

    def __init__(self, name: str, file: RotatingFile) -> None:
        self.name = name
        self.file = file
        self.pending: list[bytes] = []
        self.size = 0
        self.overflow = 0
        self._lost = 0
        self._why = ""
        self._pause = FIRST_PAUSE
        self._again = 0.0

    def take(self, data: bytes) -> None:
        """Keep for the writer, or count as lost. Called with the lock held."""
        if self.size + len(data) > PENDING:
            self.overflow += len(data)
            return
        self.pending.append(data)
        self.size += len(data)

    def write(self, data: bytes, overflow: int, now: float) -> str | None:
        """Write what has come; a line for the launcher when that begins to fail or works again."""
        if overflow:
            self._lost += overflow
            self._why = self._why or "the disk is too slow"
        if now < self._again:
            self._lost += len(data)
            return None
        if self._lost:
            note = f"\n--- toolkit: {self._lost} bytes of output are missing here: {self._why}\n"
            if self.file.write(note.encode()) < len(note):
                return self._failed(len(data), now)
        said = f"again {self.name} {self._lost}" if self._lost else None
        self._lost, self._why = 0, ""
        written = self.file.write(data)
        if written < len(data):
            return self._failed(len(data) - written, now)
        self._pause = FIRST_PAUSE
        return said

    @property
    def owes_a_try(self) -> float | None:
        """When (monotonic s) to look whether writing works again; None when it does."""
        return self._again if self._lost else None

    def _failed(self, count: int, now: float) -> str:
        error = self.file.error
        self.file.close()
        self._lost += count
        self._why = (error.strerror if error else "") or "it cannot be written"
        self._again = now + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE)
        return f"lost {self.name} {self._why}"


class Writer(threading.Thread):
    """Writes what the reader hands over. Only this thread ever waits for the disk."""

    def __init__(self, sinks: list[LogSink]) -> None:
        super().__init__(daemon=True, name="log-writer")
        self.lock = threading.Condition()
        self.asked: list[str] = []
        self.over = False
        self._sinks = sinks

    def run(self) -> None:
        """Until `over`, and all that came before it is written or dropped."""
        while True:
            with self.lock:
                self.lock.wait_for(self._has_work, self._wait_limit())
                over, asked, self.asked = self.over, self.asked, []
                work = []
                for sink in self._sinks:
                    work.append((sink, b"".join(sink.pending), sink.overflow))
                    sink.pending, sink.size, sink.overflow = [], 0, 0
            now = time.monotonic()
            for sink, data, overflow in work:
                if data or overflow or sink.owes_a_try is not None:
                    said = sink.write(data, overflow, now)
                    if said:
                        tell(said)
            for number in asked:
                tell(f"settled {number}")
            if over:
                return

    def _has_work(self) -> bool:
        return self.over or bool(self.asked) or any(s.pending or s.overflow for s in self._sinks)

    def _wait_limit(self) -> float | None:
        times = [t for t in (s.owes_a_try for s in self._sinks) if t is not None]
        return max(0.05, min(times) - time.monotonic()) if times else None


def tell(line: str) -> None:
    """A line to the launcher, which may be stopped (then it is dropped) or gone."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def main() -> None:
    """`python -m toolkit.launch.logpump MAX_BYTES KEEP FD:NAME:PATH...`; lines `settle N` on
    standard input are answered by `settled N` when all that was written before is in the files."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    max_bytes, keep = int(sys.argv[1]), int(sys.argv[2])
    selector = selectors.DefaultSelector()
    pipes: dict[int, LogSink] = {}
    for argument in sys.argv[3:]:
        number, name, path = argument.split(":", 2)
        fd = int(number)
        os.set_blocking(fd, False)
        pipes[fd] = LogSink(name, RotatingFile(Path(path), max_bytes, keep))
        selector.register(fd, selectors.EVENT_READ)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    selector.register(0, selectors.EVENT_READ)
    writer = Writer(list(pipes.values()))
    writer.start()
    words = b""
    while pipes:
        for key, _ in selector.select():
            fd = int(key.fd)
            if fd in pipes:
                _drain(fd, pipes, selector, writer)
            if fd != 0:
                continue
            data = _read(0)
            if not data:
                if data is not None:
                    selector.unregister(0)
                continue
            *lines, words = (words + data).split(b"\n")
            for each in list(pipes):
                _drain(each, pipes, selector, writer)
            with writer.lock:
                writer.asked += [line.split()[1].decode() for line in lines]
                writer.lock.notify()
    with writer.lock:
        writer.over = True
        writer.lock.notify()
    writer.join(LAST_WORDS)
    os._exit(0)  # a writer that hangs in the kernel must not keep this process


def _drain(
    fd: int, pipes: dict[int, LogSink], selector: selectors.BaseSelector, to: Writer
) -> None:
    """Hand over what a pipe holds, a pipe's whole capacity at most."""
    for _ in range(16):
        data = _read(fd)
        if data is None:
            return
        if not data:
            selector.unregister(fd)
            os.close(fd)
            del pipes[fd]
            return
        with to.lock:
            # The sink stays with the writer also when its pipe is gone.
            pipes[fd].take(data)
            to.lock.notify()


def _read(fd: int) -> bytes | None:
    """What is there; None: nothing now; empty: nobody writes any more."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


if __name__ == "__main__":
    main()
