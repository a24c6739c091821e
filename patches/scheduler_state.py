"""What patches keep in a scheduler's process: one object, with a field for each patch.

SGLang runs one scheduler in a process. Many hooks are given only a part of that scheduler (its
request receiver, a capturer, a thread of the KV manager) and ask for the process's state by
`current`. Hooks that are given the scheduler ask by `of`, which hangs the state on the scheduler.

What is kept per request or per batch hangs on SGLang's `Req` or `ScheduleBatch` itself. What exists
before there is a scheduler stays with its module: which patches are in (`patches.environment`),
what PyTorch keeps registered (`patches.stubs`, `patches.cpu.deterministic`), the process that
others are forked from (`patches.cpu.template`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from toolkit.policies.preemption.bounds import Bounds

if TYPE_CHECKING:
    from patches.experts.signature import Counted
    from patches.experts.signature_cache import SignatureCache
    from patches.move.copying import Outgoing, StepTimes
    from patches.move.held import Held
    from patches.pd.early_send import Parked
    from patches.pd.rank_sockets import RankSockets
    from patches.pd.waiting_order import WaitingOrder
    from patches.preempt.boundary import BestEffortBatch
    from patches.sglang_types import Batch, ForwardBatch, Req, Scheduler, SendingManager
    from patches.steps.batch_trace import Trace
    from patches.steps.step_log import StepLog
    from patches.streams.heartbeat import SchedulerProgress
    from toolkit.contract.preempting import Preempting
    from toolkit.policies.preemption.boundary import BoundaryPolicy

ATTRIBUTE = "toolkit_state"
"""Of SGLang's `Scheduler`."""


@dataclass
class SignatureState:
    """`batch` is the one that is being launched."""

    cache: SignatureCache | None = None
    batch: Batch | None = None
    inline: Counted | None = None
    """Without overlap there is no output object that could carry what was counted."""


@dataclass
class EarlyState:
    """`kept`: taken from the socket and left for the loop's own look, in order of arrival.
    `on_gpu`: the rank looks while it waits for a result."""

    kept: deque[object] = field(default_factory=deque)
    on_gpu: bool = False


@dataclass
class ParkedState:
    """Finished prefills by bootstrap room. An entry leaves when it is sent, or when the scheduler
    sees its room do anything. A thread of the KV manager sends: whoever reads holds `lock`."""

    by_room: dict[int, Parked] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


@dataclass
class WaitingState:
    """`order` is None where SGLang's own stays, `read`: it is known which. `clock`: the newest
    Tick, ms; `logged`: the one at which the log has a line."""

    order: WaitingOrder | None = None
    clock: int = 0
    logged: int = 0
    read: bool = False


@dataclass
class MovingState:
    """Requests that go on elsewhere. `manager`: None where the rank cannot send, for the reason
    `why`. `moves` and `held` are by request id; `held`: whose output is held back."""

    manager: SendingManager | None = None
    why: str = "it has not started"
    moves: dict[str, Outgoing] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    steps: StepTimes | None = None
    """None: no step has ended."""


@dataclass
class Aside:
    """`chunked`: a best-effort prompt, a part of which is computed. `passed`: batches and steps of
    others since a best-effort one, while such a one waits."""

    chunked: Req | None = None
    passed: int = 0


@dataclass
class BoundaryState:
    """Stops of best-effort prompts between layers. Times are seconds."""

    policy: BoundaryPolicy | None = None
    """None: nothing is stopped here."""
    bounds: Bounds = field(default_factory=Bounds)
    slice: int = 1
    experts: int = 0
    """Experts of a layer between two looks; 0: none within a layer (`patches.preempt.experts`)."""
    experts_left: list[int] = field(default_factory=list)
    """Experts until the next look, of the layers that run: a nested prompt's is the last."""
    slo_s: float = float("inf")
    layers: int = 0
    running: BestEffortBatch | None = None
    forward: ForwardBatch | None = None
    """The ForwardBatch of `running`."""
    done: int = 0
    """Layers that `running` has behind it."""
    kept: deque[object] = field(default_factory=deque)
    """Taken from the socket and left for the loop's own look, in order of arrival."""
    rate_s: float = 0.0
    """Seconds a prompt token, of the last batch that was nobody's to stop."""


@dataclass
class Lockstep:
    """The all-gathers that this rank has taken part in, and the one before each forward."""

    count: int = 0
    forwards: dict[int, int] = field(default_factory=dict)


@dataclass
class SchedulerState:
    """One process's; fields are in the order of the folders of `patches`."""

    scheduler: Scheduler | None = None
    """SGLang's; None until a hook was given it."""
    computed_at: float = 0.0
    """`cpu_idle`: monotonic seconds at which something was computed last."""
    received: int = 0
    """`load_count`: requests that the rank has taken from its socket."""
    signature: SignatureState = field(default_factory=SignatureState)
    """`signature`; `preempt_boundary` puts the batch back that a stop has hidden."""
    moving: MovingState = field(default_factory=MovingState)
    """`move_outgoing`, `move_held`."""
    early: EarlyState = field(default_factory=EarlyState)
    """`early_place`."""
    rank_sockets: RankSockets | None = None
    """`prefill_restart`, made by the first request: SGLang too has one set of sockets a process."""
    parked: ParkedState = field(default_factory=ParkedState)
    """`early_send`; `cpu_idle` reads it."""
    waiting: WaitingState = field(default_factory=WaitingState)
    """`waiting_queue`."""
    aside: Aside = field(default_factory=Aside)
    """`preempt_admission`."""
    boundary: BoundaryState = field(default_factory=BoundaryState)
    """`preempt_boundary`, `preempt_experts`."""
    pausing: Preempting | None = None
    """`preempt_answers`: when answers are paused; None: they are not."""
    relocations: int = 0
    """`relocation_rank`: orders that were carried out."""
    lockstep: Lockstep = field(default_factory=Lockstep)
    """`lockstep`; `step_log` reads it."""
    step_log: StepLog | None = None
    """`step_log`, made by the first step; `preempt_boundary` begins it anew."""
    trace: Trace | None = None
    """`batch_trace`."""
    rounds: SchedulerProgress | None = None
    """`heartbeat`, made by the first round."""


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
