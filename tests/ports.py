"""Free TCP ports for what tests start.

Outside the kernel's ephemeral range: one inside it may become the source port of some connection
before the process that it was chosen for has bound it.
"""

from __future__ import annotations

from toolkit.launch import claims
from toolkit.launch.ports import FreePorts

_PORTS = FreePorts()


def free_port(count: int = 1) -> int:
    """The first of `count` consecutive ports that nobody listens on and no launcher is about to
    open at this moment, never the same twice."""
    while True:
        first = _PORTS.take(count)
        if claims.claimed().isdisjoint(range(first, first + count)):
            return first
