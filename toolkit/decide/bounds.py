"""What the deployment's file says to the decider."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeciderBounds:
    """Times in seconds. `late`: decode workers are chosen when the prefill has run; `kept_back`:
    credits of a prefill rank that best-effort requests leave for others."""

    late: bool
    park_timeout_s: float
    prefill_wait_s: float
    no_worker_wait_s: float
    rerun_wait_s: float
    max_retries: int
    max_inflight: int
    eject_share: float
    kept_back: int


KEPT_BACK = 8
"""One in so many parked prefills of a rank is for others than best-effort requests."""


def kept_back(parked: int, classes: bool) -> int:
    """Credits that best-effort requests leave for others, of so many; where there are classes."""
    return parked // KEPT_BACK if classes else 0
