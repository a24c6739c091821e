"""A scheduler that only waits for KV transfers leaves the core to others, on CPU.

SGLang's `--sleep-on-idle` lets a scheduler sleep that has nothing at all. One with requests in
transfer polls them without end, and with late binding a prefill worker almost always has some: they
wait for a decode worker to be chosen. On a GPU host that is a core of many; here it is one of two,
and the ones that compute go without. So it sleeps until a request comes, or for PAUSE_MS, once
nothing has been computed for AWAKE_S: a transfer that is not held up is over by then.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from patches.base import Hook, Patch, Process

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SLEEPER = "sglang.srt.managers.scheduler_components.idle_sleeper.IdleSleeper"
AWAKE_S = 0.02
PAUSE_MS = 1
"""A transfer that was held up starts, and ends, so much later at most."""
_SINCE = "toolkit_waiting_since"


def _on_idle(original: Any, scheduler: Any) -> None:
    original(scheduler)
    # Ranks of DP attention have no sleeper: they have to meet in every round of the loop.
    poller = getattr(scheduler.idle_sleeper, "poller", None)
    if poller is None:
        return
    if scheduler.last_batch is not None or scheduler.is_fully_idle():
        setattr(scheduler, _SINCE, monotonic())
    elif monotonic() - getattr(scheduler, _SINCE, 0.0) > AWAKE_S:
        poller.poll(PAUSE_MS)


PATCH = Patch(
    name="cpu_idle",
    why="requests that wait for their KV transfer keep a core busy",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook(f"{SCHEDULER}.on_idle", _on_idle, ("self",)),),
    requires=(SLEEPER, f"{SCHEDULER}.init_idle_sleeper", f"{SCHEDULER}.is_fully_idle"),
    cpu_only=True,
)
