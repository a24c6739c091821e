"""Problems found before or while a deployment runs, each with the way to mend it."""

from toolkit.errors import LaunchError, Problem

__all__ = ["LaunchError", "Problem"]
