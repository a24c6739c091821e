"""A scheduler computes mostly while nothing else wants its core, on CPU, if it was told so.

For CPU workers that share cores: what serves them (HTTP, detokenizers, the router, a prefill
worker) is small and is waited for by all, so it must not queue behind their model steps. That holds
for the scheduler's own threads too, the ones that receive KV: only the thread that computes steps
back, once all of them have been started. ZeroMQ's take its rank nevertheless; a context starts them
with its first socket, so that is opened before.

It steps back by a nice of 10, not to SCHED_IDLE, which weighs 3 of 1024: next to a busy HTTP
process a decode rank then said nothing for 5 s and more, as if hung. Niceness counts between
workers because the launcher keeps them in one session (`toolkit.launch.trees`).
"""

import os
import threading

from patches.base import Hook, Patch, Process
from patches.layers import Original
from patches.sglang_types import Scheduler
from toolkit.contract.variables import BACKGROUND_VARIABLE

NICE = 10
"""A tenth of a core that another thread wants too."""


def _step_back(original: Original[None], scheduler: Scheduler) -> None:
    _start_zmq_threads()
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    original(scheduler)


def _start_zmq_threads() -> None:
    """Of the context by which a decode worker tells prefill workers where their KV goes."""
    import zmq
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    CommonKVReceiver._ctx.socket(zmq.PUSH).close()


PATCH = Patch(
    name="cpu_background",
    why="what serves a worker must not queue behind model steps on the same core",
    gain="what serves a worker goes before model steps, on a CPU",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook("sglang.srt.managers.scheduler.dispatch_event_loop", _step_back, ("scheduler",)),),
    requires=("sglang.srt.disaggregation.common.conn.CommonKVReceiver._ctx",),
    cpu_only=True,
    variable=BACKGROUND_VARIABLE,
)
