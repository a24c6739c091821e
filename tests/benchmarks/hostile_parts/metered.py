"""`python -m tests.benchmarks.hostile_parts.metered CONFIG.json`: a router that knows how long its
event loop was held.

It is `toolkit.router` on asyncio's own loop, whose turns can be timed: the CPU time of its thread
from the end of one wait for sockets to the next. CPU time, so that neighbours on the machine add
nothing. On SIGUSR1 it writes the longest turn since the last one, and the CPU time of all, as JSON
to CONFIG.json.held.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import thread_time
from typing import Any


class Metered(asyncio.SelectorEventLoop):
    """A loop that times its turns. What it takes to poll is in them, and is little."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self.since = thread_time()

    def _run_once(self) -> None:
        before = thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, thread_time() - before)

    def tell(self, path: Path) -> None:
        now = thread_time()
        new = path.with_suffix(".new")
        new.write_text(
            json.dumps({"held_ms": self.longest * 1e3, "cpu_ms": (now - self.since) * 1e3})
        )
        new.replace(path)
        self.longest, self.since = 0.0, thread_time()


def run(main: Coroutine[Any, Any, int]) -> int:
    """In place of `uvloop.run`."""
    loop = Metered()
    loop.add_signal_handler(signal.SIGUSR1, loop.tell, Path(f"{sys.argv[1]}.held"))
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def main() -> int:
    import uvloop

    from toolkit.router import __main__ as router

    given: Callable[..., Any] = run
    uvloop.run = given
    return router.main()


if __name__ == "__main__":
    sys.exit(main())
