"""Log files: only their owner may read them, and they rotate by size. Standard library only: the
log pump imports this.

`NAME.log` is written, `NAME.log.1` is what it held before, and so on to `.keep`. They are told
apart by their inodes: who follows a log reads the old file to its end and then opens the new one.
"""

import contextlib
import os
import time
from pathlib import Path

LOOK_EVERY = 1.0
"""Seconds between two looks whether the file is still where it was opened, and not moved away."""
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: Path) -> int:
    """Open a log to append to, mode 0600 (also one that is there); the descriptor. OSError."""
    fd = os.open(path, FLAGS, 0o600)
    try:
        os.fchmod(fd, 0o600)
    except OSError:
        os.close(fd)
        raise
    return fd


def shift(path: Path, keep: int) -> None:
    """Make room at `path`: the file becomes `.1`, that one `.2`; what is beyond `keep` goes."""
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    path.unlink(missing_ok=True)


class RotatingFile:
    """A log that is written to by this process alone."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path = path
        self.error: OSError | None = None
        """Why the last `write` wrote less than it was given."""
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._size = 0
        self._looked = 0.0

    def write(self, data: bytes) -> int:
        """Append; the bytes that were written, fewer than given when `error` came in between.

        A file that grows beyond the limit is rotated after a line's end. One that was removed is
        made again, with its folder.
        """
        self.error = None
        done = 0
        try:
            while done < len(data):
                self._open()
                room = self._max_bytes - self._size
                part = data[done:] if room >= len(data) - done else _whole_lines(data, done, room)
                if not part:
                    self._rotate()
                    continue
                count = os.write(self._fd, part)
                done += count
                self._size += count
        except OSError as error:
            self.error = error
        return done

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        now = time.monotonic()
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:  # removed
            self.close()
        if self._fd >= 0 and now - self._looked >= LOOK_EVERY:
            self._looked = now
            if not self._is_there():
                self.close()
        if self._fd < 0:
            private_folder(self.path.parent)
            self._fd = open_private(self.path)
            self._size = os.fstat(self._fd).st_size
            self._looked = now

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def _rotate(self) -> None:
        self.close()
        shift(self.path, self._keep)
        self._open()


def _whole_lines(data: bytes, begin: int, room: int) -> bytes:
    """What of `data` from `begin` may still go into a file with `room` bytes: up to the end of the
    line that crosses the limit; nothing when the limit is reached."""
    if room <= 0:
        return b""
    end = data.find(b"\n", begin + room - 1)
    return data[begin:] if end < 0 else data[begin : end + 1]


def rotate_own(path: Path, max_bytes: int, keep: int) -> None:
    """Rotate the log that this process has as its standard error (and output), when it is `path`
    and too large. What cannot be done is left: the next call tries again."""
    with contextlib.suppress(OSError):
        mine = os.fstat(2)
        if mine.st_size < max_bytes or not os.path.samestat(mine, path.stat()):
            return
        shift(path, keep)
        fd = open_private(path)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
