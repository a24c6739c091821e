"""What the deployment's file says to the decider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.policies.stages.moving import Knobs
    from toolkit.policies.stages.qoe import Qoe


@dataclass(frozen=True, slots=True)
class MoveBounds:
    """How requests move by themselves. Seconds: from one pass to the next (`every_s`), to a pass
    after a move has ended (`soon_s`), what a move costs before any was made (`price_s`), and
    between refinements of stages' bounds, and plans of other stages (`refine_s`, `replan_s`; 0:
    none)."""

    knobs: Knobs
    every_s: float
    soon_s: float
    price_s: float
    qoe: Qoe | None
    refine_s: float
    refine_weight: float
    replan_s: float


@dataclass(frozen=True, slots=True)
class DeciderBounds:
    """Times in seconds. `late`: decode workers are chosen when the prefill has run; `kept_back`:
    credits of a prefill rank that best-effort requests leave for others. `moves`: None where no
    request moves by itself."""

    late: bool
    park_timeout_s: float
    prefill_wait_s: float
    no_worker_wait_s: float
    rerun_wait_s: float
    max_retries: int
    max_inflight: int
    eject_share: float
    kept_back: int
    moves: MoveBounds | None = None


KEPT_BACK = 8
"""One in so many parked prefills of a rank is for others than best-effort requests."""


def kept_back(parked: int, classes: bool) -> int:
    """Credits that best-effort requests leave for others, of so many; where there are classes."""
    return parked // KEPT_BACK if classes else 0
