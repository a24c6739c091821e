"""What /proc says of a forked process: its own arguments and environment, not its origin's.

The kernel shows two ranges of a process's memory (`/proc/PID/cmdline`, `environ`), which a fork
inherits. PR_SET_MM_MAP of prctl(2) names others; it takes no privilege, only a kernel that is built
for checkpoints, as distributions' are. `environ` matters: what ends the rest of a run finds its
processes by the mark there (`toolkit.contract.run_id`).

setproctitle writes over both ranges. So it is called once before anything else, which has it move
the environment away for good; from then on it only writes to the first range as it was at the start
(`title_range`).
"""

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

PR_SET_MM = 35
PR_SET_MM_MAP = 14
NO_EXE = 0xFFFFFFFF
Range = tuple[int, int]

_kept: list[mmap.mmap] = []
"""The kernel reads this memory as long as the process lives."""
_title: Range | None = None
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p


def begin(title: str) -> None:
    """Show `title`, and the environment as it is. Once, before a change of either."""
    global _title
    _title = _ranges()[0]
    environment = _copy(_lines(os.environ))
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        comm = Path("/proc/self/comm")
        short = comm.read_text()
        setproctitle(title)
        with contextlib.suppress(OSError):
            comm.write_text(short)
    with contextlib.suppress(OSError):
        _show(_title, environment)


def become(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Show these from now on. Nothing, on a kernel that does not do it."""
    with contextlib.suppress(OSError):
        _show(_copy(map(os.fsencode, arguments)), _copy(_lines(environment)))


def title_range() -> None:
    """Show what setproctitle writes from now on; only in what `begin` was called for."""
    if _title is not None:
        with contextlib.suppress(OSError):
            _show(_title, _ranges()[1])


def _lines(environment: Mapping[str, str]) -> Iterable[bytes]:
    return (os.fsencode(f"{name}={value}") for name, value in environment.items())


def _copy(parts: Iterable[bytes]) -> Range:
    data = b"".join(part + b"\0" for part in parts) or b"\0"
    memory = mmap.mmap(-1, len(data), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(data)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return start, start + len(data)


def _fields() -> list[int]:
    # The name in parentheses may hold anything. The first field after it is the third of proc(5).
    text = Path("/proc/self/stat").read_text()
    return [0, 0, 0, 0, *map(int, text[text.rindex(")") + 4 :].split())]


def _ranges() -> tuple[Range, Range]:
    at = _fields()
    return (at[48], at[49]), (at[50], at[51])


def _show(arguments: Range, environment: Range) -> None:
    at = _fields()
    asked = struct.pack(
        "=11QQII",
        at[26], at[27],  # code
        at[45], at[46],  # data
        at[47], _libc.sbrk(0),
        at[28],  # stack
        *arguments,
        *environment,
        0, 0,  # the auxiliary vector stays
        NO_EXE,
    )  # fmt: skip
    buffer = ctypes.create_string_buffer(asked, len(asked))
    place = ctypes.c_ulong(ctypes.addressof(buffer))
    size = ctypes.c_ulong(len(asked))
    if _libc.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), place, size, ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
