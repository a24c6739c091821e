"""What the simulator refuses."""

from __future__ import annotations

from toolkit.errors import ToolkitError


class SimulateError(ToolkitError):
    """A trace, a fleet or a profile that cannot be simulated; says why and how to mend it."""
