"""Orders to a running launcher about one of its workers: `toolkit drain --stop`, `toolkit restart`.

They go through a named pipe in the run folder, which only its user can open, as lines of JSON. What
comes of them is in state.json: the worker's status, and the process id of its next life.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from toolkit.launch.errors import LaunchError, Problem

PIPE = "orders"
LONGEST = 512
"""Bytes of a line: what is shorter than PIPE_BUF comes in one piece."""

What = Literal["stop", "start", "restart"]
WHATS: tuple[What, ...] = ("stop", "start", "restart")


class Order(NamedTuple):
    """Do `what` with `worker`."""

    what: What
    worker: str


class Orders:
    """The launcher's end. Without a pipe (the folder cannot hold one) there are no orders."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PIPE
        self._fd = -1
        self._rest = b""

    def begin(self) -> bool:
        """Make the pipe. False: there is none, and `fileno` must not be asked for."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            os.mkfifo(self._path, 0o600)
            # For writing too: with no writer left, a pipe would be at its end for ever.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return self._fd >= 0

    def fileno(self) -> int:
        """Readable when there are some."""
        return self._fd

    def read(self) -> list[Order]:
        """All that have come. What is none is passed over: only this user can write there."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._fd, 4096):
                data += piece
        *lines, self._rest = data.split(b"\n")
        return [order for order in map(_order, lines) if order is not None]

    def close(self) -> None:
        """No more of them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._path.unlink()


def _order(line: bytes) -> Order | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("do") not in WHATS:
        return None
    worker = told.get("worker")
    return Order(told["do"], worker) if isinstance(worker, str) else None


def give(folder: Path, order: Order) -> None:
    """Give an order to the launcher of a run. LaunchError: nobody takes it."""
    line = json.dumps({"do": order.what, "worker": order.worker}).encode() + b"\n"
    assert len(line) <= LONGEST
    try:
        fd = os.open(folder / PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = f"its launcher takes no orders: {error.strerror}"
        mend = "it may have ended, or be of an older release: toolkit status shows what lives"
        raise LaunchError([Problem(str(folder / PIPE), what, mend)]) from error
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
