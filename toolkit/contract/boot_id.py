"""Which process this is: an id of its own, in what a worker says of itself.

A worker that was started again has the name and the address of the one before, and of a launcher's
run both are. Only this tells that what the former process had is gone.
"""

import os
import secrets
from functools import cache


def own() -> str:
    """Of this process. One that was forked has another than its parent."""
    return _of(os.getpid())


@cache
def _of(pid: int) -> str:
    return secrets.token_hex(8)
