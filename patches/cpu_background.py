"""A scheduler computes only while nothing else wants its core, on CPU, if it was told so.

For CPU workers that share cores: what serves them (HTTP, detokenizers, the router, a prefill
worker) is small and is waited for by all, so it must not queue behind their model steps. That holds
for the scheduler's own threads too, the ones that receive KV: only the thread that computes steps
back, once all of them have been started, and those that it starts later do not inherit it. ZeroMQ's
take its rank nevertheless; a context starts them with its first socket, so that is opened before.
"""

from __future__ import annotations

import os
from typing import Any

from patches.base import Hook, Patch, Process

VARIABLE = "TOOLKIT_BACKGROUND"


def _step_back(original: Any, scheduler: Any) -> None:
    if os.environ.get(VARIABLE):
        _start_zmq_threads()
        policy = os.SCHED_IDLE | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(0))  # 0: this thread
    original(scheduler)


def _start_zmq_threads() -> None:
    """Of the context by which a decode worker tells prefill workers where their KV goes."""
    import zmq
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    CommonKVReceiver._ctx.socket(zmq.PUSH).close()


PATCH = Patch(
    name="cpu_background",
    why="what serves a worker must not queue behind model steps on the same core",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook("sglang.srt.managers.scheduler.dispatch_event_loop", _step_back, ("scheduler",)),),
    requires=("sglang.srt.disaggregation.common.conn.CommonKVReceiver._ctx",),
    cpu_only=True,
)
