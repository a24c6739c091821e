"""What passes between the launcher and its preloaded process.

They share a pair of sockets that nobody else can open. A request is a word with two descriptors: a
file in memory that holds a `Start` as JSON, of any size, and what the new process writes to.
"""

import json
import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

READY = b"ready"
START = b"start"
GO = b"go"
"""The launcher knows the process id of what was forked, which may begin."""
LIMIT = 1 << 16
"""Bytes of an answer."""

LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


@dataclass(frozen=True)
class Start:
    """A process to fork: `python -m MODULE arguments...` as if the launcher had run it itself."""

    parent: int
    """The launcher's process id: the new process ends with it."""
    module: str
    command: tuple[str, ...]
    """What `ps` shows."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    umask: int
    nice: int
    cores: tuple[int, ...]
    limits: tuple[tuple[int, int, int], ...]
    """(number, soft, hard)."""


def surroundings() -> dict[str, Any]:
    """What a child of this process inherits beside its environment and descriptors."""
    status = Path("/proc/thread-self/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))
    return {
        "folder": os.getcwd(),  # noqa: PTH109 (a string)
        "umask": int(mask, 8),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": tuple(sorted(os.sched_getaffinity(0))),
        "limits": tuple((number, *resource.getrlimit(number)) for number in LIMITS),
    }


def send(sock: socket.socket, start: Start, output: int) -> None:
    """Ask for a process that writes to the descriptor `output`."""
    file = os.memfd_create("start")
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(json.dumps(asdict(start)).encode())
        socket.send_fds(sock, [START], [file, output])
    finally:
        os.close(file)


def receive(sock: socket.socket) -> tuple[Start, int] | None:
    """The next request and its output; None when the launcher is gone."""
    word, descriptors, _, _ = socket.recv_fds(sock, len(START), 2)
    if word != START:
        return None
    file, output = descriptors
    with os.fdopen(file, "rb") as given:
        given.seek(0)
        data = json.load(given)
    for name in ("command", "arguments", "cores"):
        data[name] = tuple(data[name])
    data["limits"] = tuple(tuple(each) for each in data["limits"])
    return Start(**data), output
