"""A scheduler computes only while nothing else wants its core, on CPU, if it was told so.

For CPU workers that share cores: what serves them (HTTP, detokenizers, the router, a prefill
worker) is small and is waited for by all, so it must not queue behind their model steps. That holds
for the scheduler's own threads too, the ones that receive KV: only the thread that computes steps
back, and only when all others have been started, since threads inherit their parent's rank.
"""

from __future__ import annotations

import os
from typing import Any

from patches.base import Hook, Patch, Process

VARIABLE = "TOOLKIT_BACKGROUND"


def _step_back(original: Any, scheduler: Any) -> None:
    if os.environ.get(VARIABLE):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
    original(scheduler)


PATCH = Patch(
    name="cpu_background",
    why="what serves a worker must not queue behind model steps on the same core",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook("sglang.srt.managers.scheduler.dispatch_event_loop", _step_back, ("scheduler",)),),
    cpu_only=True,
)
