"""Replace a folder as a whole: readers and killed writers see the old one or the new one.

The new folder grows beside the target as `.NAME.new-XXXX` and is exchanged with it in one
system call. Where the file system cannot exchange (some network ones), the old folder steps
aside as `.NAME.old` for an instant; `settled` finds it there after a kill in that instant.
Writers hold a lock on the parent folder, which the kernel frees however they end: what a writer
finds under such names is therefore left over by a dead one.
"""

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def settled(target: Path) -> Path:
    """Where the folder's content is now: `target`, or its old self that a kill left aside."""
    old = _old(target)
    return old if not target.exists() and old.is_dir() else target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary folder to fill; it takes `target`'s place when the block ends well.

    Everything in it is synced to disk first. When the block raises, nothing has changed.

    Raises:
        OSError: the parent folder cannot be written, the disk is full, ...
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        _clean(target)
        fresh = target.parent / f".{target.name}.new-{secrets.token_hex(4)}"
        fresh.mkdir()
        try:
            yield fresh
            for file in fresh.rglob("*"):
                sync(file)
            sync(fresh)
            _put(fresh, target)
            sync(target.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until the file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put(fresh: Path, target: Path) -> None:
    """`fresh` becomes `target`; what was there is at `fresh` afterwards, or gone."""
    if not target.exists():
        fresh.rename(target)
    elif not _exchange(fresh, target):
        target.rename(_old(target))
        fresh.rename(target)
        shutil.rmtree(_old(target), ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names in one step; False where kernel or file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _clean(target: Path) -> None:
    """Puts an old folder that stands aside back, and removes half-written ones."""
    old = _old(target)
    if old.is_dir() and not target.exists():
        old.rename(target)
    for stale in (old, *target.parent.glob(f".{_literal(target.name)}.new-*")):
        shutil.rmtree(stale, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # no locks on this file system: two writers at once are then on their own
        yield
    finally:
        os.close(handle)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _literal(name: str) -> str:
    """`name` for a glob pattern."""
    return "".join(f"[{x}]" if x in "*?[" else x for x in name)
