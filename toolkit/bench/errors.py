"""What makes a benchmark run an error instead of a result."""

from toolkit.errors import ToolkitError


class BenchError(ToolkitError):
    """The run says nothing about speed: no tokens, lost requests, a lost worker, or bad input.

    The message tells what went wrong and, where something can be done about it, what to do.
    """
