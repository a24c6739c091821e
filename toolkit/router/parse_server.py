"""Where parsing processes come from: a process that has imported what they need, and forks them.

An interpreter that imports the checks takes half a second, a fork some milliseconds: so a process
that was ended is replaced before the next client notices. The router forks this server before it
does anything else (`forked`). Should it be gone, the next one is started plainly (`started`):
`python -m toolkit.router.parse_server ROUTER_PID`, with the socket as its standard input.

It is told over a socket of messages: each brings the socket of one parsing process that is to be
forked. It tells there how each of them ended: its pid and its return code, negative for a signal.
All of them end with it, and it with the router.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from toolkit.router import parse_job, splitting
from toolkit.router.errors import ApiError
from toolkit.router.validate import models

PID = struct.Struct("<i")
ENDED = struct.Struct("<ii")
ASK = b"fork"
PR_SET_PDEATHSIG = 1
NICE = 5

_FIRST = (
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": [{}]}], "ebnf": "a"}'),
    ("/v1/completions", b'{"prompt": "a", "regex": "a", "stop_regex": "a"}'),
    ("/generate", b'{"text": "a", "sampling_params": {"json_schema": "{}"}}'),
)
"""Bodies that bring in what is imported, or made, at its first use."""


class Started(NamedTuple):
    """A server, as the router knows it."""

    control: socket.socket
    pid: int


def pair() -> tuple[socket.socket, socket.socket]:
    """The router's end, and this server's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def forked() -> Started:
    """Fork the server from this process, which must have one thread and no event loop."""
    prepare()  # here, for both
    ours, theirs = pair()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Started(ours, pid)
    try:
        _keep_only(theirs.fileno())
        serve(theirs, parent)
    finally:
        os._exit(0)


def started() -> Started:
    """Start the server as a new program."""
    ours, theirs = pair()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "toolkit.router.parse_server", str(os.getpid())],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
    )
    theirs.close()
    return Started(ours, pid)


def serve(control: socket.socket, parent: int) -> None:
    """Fork whenever it is asked for, until the other end is closed."""
    die_with(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C is the router's to handle
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: _tell(control))
    own = os.getpid()
    while True:
        said, files, _, _ = socket.recv_fds(control, len(ASK), 1)
        if not said:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # the child must not tell
        if not os.fork():
            try:
                _parse(control, files[0], own)
            finally:
                os._exit(0)
        os.close(files[0])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def prepare() -> None:
    """Whatever is made at its first use."""
    models.prepare(frozenset())
    for path, raw in _FIRST:
        with suppress(ApiError):
            splitting.parse(path, raw)


def _parse(control: socket.socket, number: int, parent: int) -> None:
    """The life of a parsing process."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    control.close()
    os.nice(NICE)
    with socket.socket(fileno=number) as sock:
        sock.sendall(PID.pack(os.getpid()))
        parse_job.serve(sock)


def _tell(control: socket.socket) -> None:
    for ended in ended_children():
        with suppress(OSError):  # the router has gone, and this server is about to
            control.send(ENDED.pack(*ended))


def ended_children() -> Iterator[tuple[int, int]]:
    """Each child of this process that has ended, once: its pid and its return code, negative for
    a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def die_with(parent: int) -> None:
    """End when `parent`, which must be the parent, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _keep_only(number: int) -> None:
    """Close all files but the three first and this one: sockets that listen are the router's."""
    if number > 3:
        os.closerange(3, number)
    os.closerange(max(3, number + 1), os.sysconf("SC_OPEN_MAX"))


def main() -> int:
    _keep_only(0)
    prepare()
    serve(socket.socket(fileno=0), int(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
