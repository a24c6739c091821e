"""What a call costs this process, told apart from what the machine does beside it."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIES = 3
"""Other work on this machine can only add to what is measured, so one good try is enough."""


@contextmanager
def no_collector() -> Iterator[None]:
    """Without the garbage collector, whose rounds come when they come: under pytest one full round
    looks at millions of objects that are not of the call."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def cpu_s(call: Callable[[], object], enough: float = 0.0, tries: int = TRIES) -> float:
    """The least CPU time in seconds of some calls; no more of them once one took at most `enough`.

    `call` must cost the same each time: what it keeps it should forget by itself."""
    least = float("inf")
    with no_collector():
        for _ in range(tries):
            begin = time.process_time()
            call()
            least = min(least, time.process_time() - begin)
            if least <= enough:
                break
    return least
