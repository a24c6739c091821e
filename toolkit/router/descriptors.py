"""File descriptors of the router: raised to what the system allows, and shared out.

Each client's connection takes one, and each request that runs up to two more towards workers
(prefill and decode). When none is left it is the router's own shortage: no worker is to blame.
"""

from __future__ import annotations

import errno
import resource

SPARE = 48
"""For the program itself: logs, sockets that listen, the parser, event streams of some workers."""
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


def raise_limit() -> int:
    """Lift the soft limit to the hard one; the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # more than the kernel allows: what there is must do
            pass
    return soft if soft != resource.RLIM_INFINITY else 2**20


def is_ours(error: BaseException) -> bool:
    """Whether a connection failed for want of something of this machine's."""
    return isinstance(error, OSError) and error.errno in OURS


def client_share(limit: int, workers: int, max_inflight: int) -> int:
    """How many clients' connections leave enough for those to workers."""
    usable = max(3, limit - SPARE - 2 * workers)
    towards_workers = min(2 * max_inflight, usable * 2 // 3)
    return usable - towards_workers
