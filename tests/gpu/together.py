"""Steps that are started at once and measure one after the other, since a start takes a minute of
which the GPU sees little: files in a folder of the run say who is up and that all are, and a lock
whose turn it is."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.2


def folder(scratch: Path) -> Path:
    """There where steps run together."""
    return scratch / "together"


@contextmanager
def waiting_turn(scratch: Path, step: str) -> Iterator[None]:
    """Until all are up, and nobody else measures. At once where steps do not run together."""
    own = folder(scratch)
    if not own.is_dir():
        yield
        return
    (own / f"{step}.up").touch()
    while not (own / "go").exists():
        time.sleep(LOOK_S)
    with (own / "gpu").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # gone with this process, however it ends
        yield
