"""What the simulator refuses."""

from __future__ import annotations


class SimulateError(Exception):
    """A trace, a fleet or a profile that cannot be simulated; says why and how to mend it."""
