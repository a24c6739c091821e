"""Free TCP ports for what tests start.

Outside the kernel's ephemeral range: one inside it may become the source port of some connection
before the process that it was chosen for has bound it.
"""

from __future__ import annotations

from toolkit.launch.ports import FreePorts

_PORTS = FreePorts()


def free_port() -> int:
    """A port that nobody listens on at this moment, never the same twice."""
    return _PORTS.take()
