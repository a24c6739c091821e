"""What goes wrong with profiles, for people to read."""

from toolkit.errors import ToolkitError


class ProfileError(ToolkitError):
    """Says what is wrong and how to mend it; the command line prints it without a traceback."""
