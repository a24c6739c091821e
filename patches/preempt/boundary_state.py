"""The best-effort batch that runs, and how it may be stopped: between layers
(`patches.preempt.boundary`), and within one (`patches.preempt.experts`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patches.sglang_types import Batch, ForwardBatch
from toolkit.policies.preemption.boundary import BoundaryPolicy
from toolkit.policies.preemption.bounds import Bounds

if TYPE_CHECKING:
    from torch.cuda import Event


@dataclass
class BestEffortBatch:
    """The best-effort batch that runs. Times are seconds."""

    batch: Batch
    began: float
    at: float
    """The last boundary."""
    slice_s: float = 0.0
    paused_s: float = 0.0
    pauses: int = 0
    events: deque[Event] = field(default_factory=deque)


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
