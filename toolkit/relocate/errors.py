"""What goes wrong while experts are moved."""

from toolkit.errors import ToolkitError


class RelocationError(ToolkitError, RuntimeError):
    """The server does not do what is asked; the message says why and what to do."""
