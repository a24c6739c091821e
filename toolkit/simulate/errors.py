"""What the simulator refuses."""

from toolkit.errors import ToolkitError


class SimulateError(ToolkitError):
    """A trace, a fleet or a profile that cannot be simulated; says why and how to mend it."""
