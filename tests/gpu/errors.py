"""What goes wrong by what the caller gave or has: said without a traceback."""


class GpuCheckError(Exception):
    """The message says what is wrong and how to mend it."""
