"""What goes wrong by what the caller gave or has: said without a traceback."""

from __future__ import annotations


class GpuCheckError(Exception):
    """The message says what is wrong and how to mend it."""
