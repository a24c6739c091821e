"""`python -m toolkit.router.parse_job ROUTER_PID`: parses large bodies for the router.

On standard input, again and again: a frame with what `parse` is to know, a frame with the body. On
standard output: a frame with the pickled `Job` and the bytes that posting it takes (or None and the
arguments of the ApiError), then the number, sizes and bytes of its packed values, which the `Job`
names by number. It ends with its
standard input, and with its router, however that ends.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import resource
import signal
import struct
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
MAX_VALUES = 4 * 2**20
"""JSON values of one body; each is up to 72 bytes of memory."""
MAX_SKELETON = 8 * 2**20
"""Bytes of a pickled job, without its packed values: what the router's loop is to read at once."""


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it ended before the line above
        return 1
    from toolkit.router.parsing import FRAME, PARSER_MIB

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the router's to handle
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = PARSER_MIB * 2**20
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    os.nice(5)
    gc.disable()  # JSON has no cycles, and each collection would walk all of it
    given, out = sys.stdin.buffer, sys.stdout.buffer
    while len(head := given.read(FRAME.size)) == FRAME.size:
        known = given.read(FRAME.unpack(head)[0])
        (size,) = FRAME.unpack(given.read(FRAME.size))
        skeleton, pieces = answer(known, given.read(size))
        out.write(FRAME.pack(len(skeleton)) + skeleton + FRAME.pack(len(pieces)))
        out.write(struct.pack(f"<{len(pieces)}Q", *map(len, pieces)))
        for piece in pieces:
            out.write(piece)
        out.flush()
        del skeleton, pieces
    return 0


def answer(known: bytes, raw: bytes) -> tuple[bytes, list[bytes]]:
    """The pickled job and its packed values; or the pickled error, and none."""
    from toolkit.router.errors import ApiError

    try:
        return _parse(known, raw)
    except ApiError as error:
        return pickle.dumps((None, _arguments(error))), []
    except MemoryError:
        told = {"status": 413, "message": "The body takes too much memory."}
        return pickle.dumps((None, told)), []


def _parse(known: bytes, raw: bytes) -> tuple[bytes, list[bytes]]:
    from toolkit.router import request_view, splitting
    from toolkit.router.budget import values
    from toolkit.router.errors import ApiError
    from toolkit.router.packed import Packed, pack, unpacked

    path, options, request_view.SALT = pickle.loads(known)
    if values(raw) > MAX_VALUES:
        raise ApiError(413, f"The body has more than {MAX_VALUES} JSON values.")
    job = splitting.parse(path, raw, **options)
    packed = pack(job)
    numbers = {id(each): number for number, each in enumerate(packed)}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            return numbers[id(value)] if type(value) is Packed else None

    file = io.BytesIO()
    Pickler(file, protocol=5).dump((job, unpacked(job)))
    if file.tell() > MAX_SKELETON:
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


if __name__ == "__main__":
    sys.exit(main())
