"""Free TCP ports for what tests start.

A port is chosen some time before a process binds it. So each process of pytest chooses from a part
of its own: two that chose from the same 12,000 met once in a run of 5,000 tests. These parts are
outside Linux's usual ephemeral range, where a port may become the source port of some connection,
and outside the ranges of launchers (from 20,000) and of Mooncake (15,000 to 17,000).
"""

import os

from toolkit.launch import claims
from toolkit.launch.ports import FreePorts

LOW, HIGH = 10_000, 15_000


def part(worker: str, count: int) -> tuple[int, int]:
    """The ports of one of pytest's processes: `gw0` to `gw<count - 1>`, or "" for the only one."""
    size = (HIGH - LOW) // count
    first = LOW + size * int(worker.removeprefix("gw") or 0)
    return first, first + size


_PART = part(
    os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
)
_ports = FreePorts(between=_PART)


def free_port(count: int = 1) -> int:
    """The first of `count` consecutive ports that nobody listens on and no launcher is about to
    open at this moment; none again before the others had their turn."""
    global _ports
    while True:
        try:
            first = _ports.take(count)
        except OSError:
            _ports = FreePorts(between=_PART)
            first = _ports.take(count)
        if claims.claimed().isdisjoint(range(first, first + count)):
            return first
