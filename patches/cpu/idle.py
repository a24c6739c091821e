"""A scheduler that computes nothing leaves the core to others, on CPU.

SGLang's `--sleep-on-idle` lets a scheduler sleep that has nothing at all. Two kinds poll without
end all the same:

- One with requests in transfer. It sleeps until a request comes, or for PAUSE_MS. With late binding
  a prefill worker almost always has some that wait for a decode worker to be chosen; as long as all
  of them do, and `early_send` will send them without it, it sleeps for PARKED_MS.
- The ranks of DP attention, even with nothing to do: they have to meet in every round of the loop.
  Each of them sleeps PAUSE_MS (waiting for transfers) or IDLE_MS (idle) a round.

On a GPU host that is a core of many; here it is one of two, and the ones that compute, or start
beside it, go without. They sleep once nothing has been computed for AWAKE_S: a transfer that is not
held up is over by then.
"""

import time
from dataclasses import dataclass

from patches.base import Hook, Patch, Process
from patches.dp import layout
from patches.layers import Original
from patches.pd.early_send import all_parked
from patches.scheduler_state import of
from patches.sglang_types import Scheduler

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SLEEPER = "sglang.srt.managers.scheduler_components.idle_sleeper.IdleSleeper"
AWAKE_S = 0.02
PAUSE_MS = 1
"""A transfer that was held up starts, and ends, so much later at most."""
PARKED_MS = 10
"""Until it hears that a parked request was sent; nobody waits for that."""
IDLE_MS = 5
"""The first request after a rest starts so much later at most."""


@dataclass
class LastComputed:
    """`at`: monotonic seconds at which something was computed last."""

    at: float = 0.0


def _on_idle(original: Original[None], scheduler: Scheduler) -> None:
    from sglang.srt.runtime_context import get_parallel

    original(scheduler)
    poller = getattr(scheduler.idle_sleeper, "poller", None)
    if poller is None and not layout.together(get_parallel()):
        return  # a rank that follows another one's requests
    idle, computed = scheduler.is_fully_idle(), of(scheduler).get(LastComputed)
    if scheduler.last_batch is not None or (idle and poller is not None):
        computed.at = time.monotonic()
    elif time.monotonic() - computed.at <= AWAKE_S:
        return
    elif poller is not None:
        poller.poll(PARKED_MS if all_parked(scheduler) else PAUSE_MS)
    else:
        time.sleep((IDLE_MS if idle else PAUSE_MS) / 1e3)


PATCH = Patch(
    name="cpu_idle",
    why="schedulers that compute nothing keep a core busy",
    gain="a core for whoever computes, on a CPU",
    independent_of={
        "step_log": "it sleeps behind whatever is inside, and that one is done before",
    },
    processes=frozenset({Process.SCHEDULER}),
    hooks=(Hook(f"{SCHEDULER}.on_idle", _on_idle, ("self",)),),
    requires=(SLEEPER, f"{SCHEDULER}.init_idle_sleeper", f"{SCHEDULER}.is_fully_idle"),
    cpu_only=True,
)
