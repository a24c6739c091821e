"""What a parsing process does: parses bodies for the router, one after the other.

It reads from its socket, again and again: a frame with what `parse` is to know and how much CPU
time it has, a frame with the body. It writes: a frame with the pickled `Job` and the bytes that
posting it takes (or None and the arguments of the ApiError), then the number, sizes and bytes of
its packed values, which the `Job` names by number. It ends with its socket.

The time that a body may take is CPU time of this process, so that a busy machine refuses nobody. It
ends in two steps. At first an exception is raised wherever Python is: the client is told which
field took so long, and this process goes on. Code in C may hold that off; a little later the kernel
ends the process, and the router tells the client and has another one (`parse_server`).
"""

from __future__ import annotations

import gc
import io
import pickle
import resource
import signal
import socket
import struct
from types import FrameType
from typing import IO, Any

from toolkit.router.quiet import log, where

FRAME = struct.Struct("<Q")
LARGE = 2**20
"""Bytes of a body from which on it is a large one."""
LARGE_MIB = 1536
"""Memory of the process that parses a large body; one does at a time."""
SMALL_MIB = 512
MAX_VALUES = 4 * 2**20
"""JSON values of one body; each is up to 72 bytes of memory."""
MAX_SKELETON = 4 * 2**20
"""Bytes of a pickled job, without its packed values: what the router's loop is to read at once."""
MAX_UNPACKED = 100_000
"""JSON values of a job beside its packed ones: each is made again in the router, and written out
for each worker, some 0.1 us each."""
MORE = 1.25
"""The kernel ends what has taken so many times its CPU time, and `MORE_S`."""
MORE_S = 0.05
_CHECKS = frozenset({"toolkit.router.validate.check", "toolkit.router.validate.parameters"})
"""Whose functions go through the fields of a body, each under the local name `name`."""


class TooCostly(BaseException):
    """The CPU time of a body is over. No Exception: what handles those must not handle this."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class Timer:
    """`with timer(seconds):` raises TooCostly after so much CPU time of this process."""

    def __init__(self) -> None:
        self._runs = False
        signal.signal(signal.SIGPROF, self._over)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def start(self, seconds: float) -> None:
        self._runs = True
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds * MORE + MORE_S)

    def stop(self) -> None:
        self._runs = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _over(self, _: int, frame: FrameType | None) -> None:
        if self._runs:
            self._runs = False
            raise TooCostly(_field(frame))


def _field(frame: FrameType | None) -> str:
    """The field of the body that is being looked at; empty where it is none."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _CHECKS:
            name = frame.f_locals.get("name")
            if isinstance(name, str):
                return name
        frame = frame.f_back
    return ""


def serve(sock: socket.socket) -> None:
    """Parse what comes on `sock`, until it ends."""
    timer = Timer()
    gc.disable()  # JSON has no cycles, and each collection would walk all of it
    with sock.makefile("rb") as given, sock.makefile("wb") as out:
        while len(head := given.read(FRAME.size)) == FRAME.size:
            known = pickle.loads(given.read(FRAME.unpack(head)[0]))
            (size,) = FRAME.unpack(given.read(FRAME.size))
            _bound(LARGE_MIB if size >= LARGE else SMALL_MIB)
            skeleton, pieces = answer(timer, known, given.read(size))
            _send(out, skeleton, pieces)
            if not pieces:  # an error, and its frames
                del skeleton
                gc.collect()


def _bound(mib: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = mib * 2**20
    resource.setrlimit(
        resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
    )


def _send(stream: IO[bytes], skeleton: bytes, pieces: list[bytes]) -> None:
    stream.write(FRAME.pack(len(skeleton)) + skeleton + FRAME.pack(len(pieces)))
    stream.write(struct.pack(f"<{len(pieces)}Q", *map(len, pieces)))
    for piece in pieces:
        stream.write(piece)
    stream.flush()


def answer(timer: Timer, known: tuple[Any, ...], raw: bytes) -> tuple[bytes, list[bytes]]:
    """The pickled job and its packed values; or the pickled error, and none."""
    from toolkit.router.errors import ApiError

    path, options, salt, seconds = known
    try:
        timer.start(seconds)
        try:
            return _parse(path, options, salt, raw)
        finally:
            timer.stop()
    except ApiError as error:
        return pickle.dumps((None, _arguments(error))), []
    except TooCostly as costly:
        return pickle.dumps((None, _arguments(too_costly(seconds, costly.field)))), []
    except MemoryError:
        told = {"status": 413, "message": "The body takes too much memory."}
        return pickle.dumps((None, told)), []
    except Exception as error:
        # The text of an unexpected exception may hold a prompt: log where, not what.
        log.error("unexpected error in a parsing process: %s", where(error))
        internal = ApiError(500, "Internal error of the router.", "InternalServerError")
        return pickle.dumps((None, _arguments(internal))), []


def too_costly(seconds: float, field: str = "") -> Any:
    """The answer to a body whose CPU time is over."""
    from toolkit.router.errors import ApiError

    what = f"Checking {field}" if field else "Parsing and checking this body"
    repair = (
        f"Send a smaller or simpler {field}"
        if field
        else "Send a smaller body, or simpler grammars, schemas and patterns"
    )
    return ApiError(
        400,
        f"{what} took more than {seconds * 1000:.0f} ms of CPU time, which is what a body of this "
        f"size may take here. {repair}; the operator can allow more with parse_cpu_ms.",
    )


def _parse(
    path: str, options: dict[str, Any], salt: bytes, raw: bytes
) -> tuple[bytes, list[bytes]]:
    from toolkit.router import request_view, splitting
    from toolkit.router.budget import values
    from toolkit.router.errors import ApiError
    from toolkit.router.packed import Packed, pack, rest

    request_view.SALT = salt
    if values(raw) > MAX_VALUES:
        raise ApiError(413, f"The body has more than {MAX_VALUES} JSON values.")
    job = splitting.parse(path, raw, **options)
    packed = pack(job)
    numbers = {id(each): number for number, each in enumerate(packed)}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            return numbers[id(value)] if type(value) is Packed else None

    left = rest(job)
    file = io.BytesIO()
    Pickler(file, protocol=5).dump((job, left.bytes))
    if file.tell() > MAX_SKELETON or left.values > MAX_UNPACKED:
        raise ApiError(413, "The body is too large apart from its prompts.")
    return file.getvalue(), [each.pieces[0] for each in packed]


def _arguments(error: Any) -> dict[str, Any]:
    return {
        "status": error.status,
        "message": error.message,
        "kind": error.kind,
        "retry_after": error.retry_after,
        "raw": error.raw,
    }
