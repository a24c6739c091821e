"""What patches keep in a scheduler's process, by its class (`patches.state_by_class`).

SGLang runs one scheduler in a process. Many hooks are given only a part of that scheduler (its
request receiver, a capturer, a thread of the KV manager) and ask for the process's state by
`current`. Hooks that are given the scheduler ask by `of`, which hangs the state on the scheduler.

What is kept per request or per batch hangs on SGLang's `Req` or `ScheduleBatch` itself. What exists
before there is a scheduler stays with its module: which patches are in (`patches.environment`),
what PyTorch keeps registered (`patches.stubs`, `patches.cpu.deterministic`), the process that
others are forked from (`patches.cpu.template`).
"""

from patches.sglang_types import Scheduler
from patches.state_by_class import StateByClass

ATTRIBUTE = "toolkit_state"
"""Of SGLang's `Scheduler`."""


class SchedulerState(StateByClass):
    """One process's."""

    scheduler: Scheduler | None = None
    """SGLang's; None until a hook was given it."""


_current = SchedulerState()


def current() -> SchedulerState:
    """The state of this process."""
    return _current


def of(scheduler: Scheduler) -> SchedulerState:
    """The state of this process, which from now on hangs on its scheduler too."""
    found: SchedulerState | None = getattr(scheduler, ATTRIBUTE, None)
    if found is None:
        found = current()
        found.scheduler = scheduler
        setattr(scheduler, ATTRIBUTE, found)
    return found
