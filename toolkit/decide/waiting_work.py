"""What of a worker's reading counts as waiting, and when a reading is too old.

The router reads events (`toolkit.router.worker`), a DP controller snapshots in shared memory
(`patches.dp.loads`): their inputs differ, and so does how each corrects them. What they take from
SGLang's figures is the same.
"""

from __future__ import annotations

STALE_S = 5.0
"""A rank that has published nothing new for this long is silent. SGLang's schedulers publish after
every step, and when idle in every round of their loop, which `--sleep-on-idle` stretches to 1 s
(`scheduler.py:on_idle`, `idle_sleeper.py`): an idle rank is heard five times in it. One that is
longer in a single step, is paused or hangs is not a rank to send more to."""


def waiting_tokens(side: str, used: int, total: int, uncached: int) -> int:
    """Tokens that wait on a rank. `used`, `total`, `uncached`: SGLang's `num_used_tokens`,
    `num_total_tokens` (what its requests will use) and `num_waiting_uncached_tokens`.

    decode: total - used, which are the requests without KV yet (preallocation and retracted
    queues); those in transfer have theirs already, and `uncached` is 0 there. plain: the latter,
    the prompt tokens left to compute. prefill: whichever is more, for a request that waits for its
    decode worker is only in the former, the rest of a chunked prompt only in the latter.
    """
    queued = total - used
    if side == "decode":
        return queued
    return max(queued, uncached) if side == "prefill" else uncached
