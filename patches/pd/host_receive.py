"""Whether a decode worker may take KV into host memory first.

Asked of its transfer queue, as the flag means the opposite from SGLang 0.5.22 on: there 1 turns it
off (the default) and 0 is always, before that 0 turned it off.
"""

from patches.sglang_types import Scheduler


def on(scheduler: Scheduler) -> bool:
    """False for a worker that decodes nothing, and in releases that cannot do it (0.5.20)."""
    queue = scheduler.disagg_decode_transfer_queue
    return bool(getattr(queue, "enable_host_receive", False))
