"""A scheduler computes only while nothing else wants its core, on CPU, if it was told so.

For CPU workers that share cores: what serves them (HTTP, detokenizers, the router, a prefill
worker) is small and is waited for by all, so it must not queue behind their model steps. That holds
for the scheduler's own threads too, the ones that receive KV: only the thread that computes steps
back, once all of them have been started, and those that it starts later do not inherit it. ZeroMQ's
take its rank nevertheless; a context starts them with its first socket, so that is opened before.

Linux gives every session a group of its own (`sched_autogroup_enabled`, sched(7)), and a thread's
rank counts within its group only. The launcher starts each worker in a session, so the server's
group steps back too: against a prefill worker or the router its HTTP process has less of a core
that both want, but it still comes before its own model steps.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from patches.base import Hook, Patch, Process

VARIABLE = "TOOLKIT_BACKGROUND"
GROUP_NICE = "5"
"""A quarter of a core that another session wants too. At 19, a seventieth, and with four ranks at
10, a tenth, decode ranks say nothing for seconds while prompts are prefilled: as if hung."""


def _step_back(original: Any, scheduler: Any) -> None:
    if os.environ.get(VARIABLE):
        _start_zmq_threads()
        _lower_group()
        policy = os.SCHED_IDLE | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(0))  # 0: this thread
    original(scheduler)


def _lower_group() -> None:
    """The whole server's share against other sessions, where the kernel has such groups. Who is not
    root may change one on the whole machine every 0.1 s."""
    for _ in range(50):
        try:
            Path("/proc/self/autogroup").write_text(GROUP_NICE)
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


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
