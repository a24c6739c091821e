"""Algorithm 1 of QLLM: which of four queues make the next batch."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Queues(NamedTuple):
    """How many requests wait for their prefill, or have answers that go on, by class."""

    urgent_prefill: int = 0
    urgent_decode: int = 0
    best_effort_prefill: int = 0
    best_effort_decode: int = 0


class PhaseBatch(NamedTuple):
    """Requests of one phase: `urgent` ones, filled up with `best_effort` (best-effort) ones."""

    phase: Literal["prefill", "decode"]
    urgent: int
    best_effort: int


def next_batch(queues: Queues, size: int) -> PhaseBatch | None:
    """The next batch of at most `size` requests, None when nobody waits.

    1. `size` or more latency-sensitive answers: these alone;
    2. a latency-sensitive prompt: such prompts, filled up with best-effort ones;
    3. latency-sensitive answers: filled up with best-effort ones;
    4. best-effort answers; 5. best-effort prompts.

    A worker that only prefills, or only decodes, has empty queues of the other phase, and the same
    rules. ValueError: `size` below 1, or a negative queue.
    Source: QLLM (Siavashi et al., Priority-Aware Preemptive Scheduling), Algorithm 1.
    """
    if size < 1 or min(queues) < 0:
        raise ValueError(f"no batch of {size} from {queues}")
    urgent_prefill, urgent_decode, best_effort_prefill, best_effort_decode = queues
    if urgent_decode >= size:
        return PhaseBatch("decode", size, 0)
    if urgent_prefill:
        return _filled("prefill", urgent_prefill, best_effort_prefill, size)
    if urgent_decode or best_effort_decode:
        return _filled("decode", urgent_decode, best_effort_decode, size)
    return _filled("prefill", 0, best_effort_prefill, size) if best_effort_prefill else None


def _filled(
    phase: Literal["prefill", "decode"], urgent: int, best_effort: int, size: int
) -> PhaseBatch:
    urgent = min(urgent, size)
    return PhaseBatch(phase, urgent, min(best_effort, size - urgent))
