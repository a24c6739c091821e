"""A chunked prefill that waits for a late decision keeps its turn.

SGLang 0.5.21 (`srt/disaggregation/prefill.py:1256`) lets an optimistic chunked prefill give way
to any waiting request whose decode is already known, throws its chunks away and counts an
attempt. Under late binding no decode is known for anybody's prompt, so giving way only recomputes
(5 of 40 requests hung once their attempts were spent).
"""

from patches.base import EITHER, Hook, Patch
from patches.layers import Original


def _never(_original: Original[bool], _scheduler: object) -> bool:
    return False


PATCH = Patch(
    name="chunk_yield",
    why="late-bound chunked prompts would be recomputed, or starve",
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
            ".has_bootstrapped_waiting_req",
            _never,
            ("self",),
        ),
    ),
)
