"""Orders to a running launcher about one of its workers: `toolkit drain --stop`, `toolkit restart`.

They go to a Unix socket that has the run's id for a name and no file: datagrams of JSON. The kernel
says whose process has sent one, and only its own user's are obeyed. What comes of them is in
state.json: the worker's status, and the process id of its next life.
"""

import contextlib
import json
import os
import socket
import struct
from typing import Literal, NamedTuple

from toolkit.bounded_files import parse_json
from toolkit.launch.errors import LaunchError, Problem

LONGEST = 1024
"""Bytes of an order."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group."""

What = Literal["stop", "start", "restart"]
WHATS: tuple[What, ...] = ("stop", "start", "restart")


class LaunchOrder(NamedTuple):
    """Do `what` with `worker`."""

    what: What
    worker: str


class Orders:
    """The launcher's end."""

    def __init__(self, run_id: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_name(run_id))

    def fileno(self) -> int:
        """Readable when there are some."""
        return self._socket.fileno()

    def read(self) -> list[LaunchOrder]:
        """All that have come. What is none, or of another user, is passed over."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                space = socket.CMSG_SPACE(_CREDENTIALS.size)
                data, told, _, _ = self._socket.recvmsg(LONGEST, space)
                order = _order(data) if _user(told) == os.getuid() else None
                if order is not None:
                    found.append(order)
        return found

    def close(self) -> None:
        """No more of them."""
        self._socket.close()


def give(run_id: str, order: LaunchOrder) -> None:
    """Give an order to the launcher of a run. LaunchError: nobody takes it."""
    data = json.dumps({"do": order.what, "worker": order.worker}).encode()
    assert len(data) <= LONGEST
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        try:
            out.sendto(data, _name(run_id))
        except OSError as error:
            what = f"its launcher takes no orders: {error.strerror}"
            repair = "it may have ended, or be of an older release: toolkit status shows what lives"
            raise LaunchError([Problem(f"run {run_id}", what, repair)]) from error


def _name(run_id: str) -> str:
    return f"\0toolkit.orders.{run_id}"


def _user(told: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[1])
    return None


def _order(data: bytes) -> LaunchOrder | None:
    try:
        told = parse_json(data)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("do") not in WHATS:
        return None
    worker = told.get("worker")
    return LaunchOrder(told["do"], worker) if isinstance(worker, str) else None
