"""What a decode rank says of its own steps, summed up: is ELDR's promise kept where it lives?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolkit.contract.events import Steps

MOST = 2**62
"""Where a sum stays, so that JSON can hold it: a true one would take an age to come there."""


@dataclass(slots=True)
class StepSums:
    """Sums over a rank's decode steps since the router started; divide by `steps` for means.

    `requests` of batch sizes, `kv_tokens` of KV tokens attended to, `seconds` of step wall times,
    `distinct` of the mean over layers of distinct experts, `new_tokens` that requests got.
    """

    steps: int = 0
    requests: int = 0
    kv_tokens: int = 0
    seconds: float = 0.0
    distinct: float = 0.0
    new_tokens: int = 0

    def add(self, event: Steps) -> None:
        """Take in an event. ValueError when its numbers cannot be; nothing is added then."""
        steps, requests, kv_tokens = event.steps, event.requests, event.kv_tokens
        seconds, distinct = event.seconds, event.distinct
        tokens = event.new_tokens or requests
        numbers = (steps, requests, kv_tokens, tokens, seconds, distinct)
        if min(numbers) < 0 or not math.isfinite(seconds + distinct):
            raise ValueError(f"not a steps event: {numbers}")
        self.steps = min(self.steps + steps, MOST)
        self.requests = min(self.requests + requests, MOST)
        self.kv_tokens = min(self.kv_tokens + kv_tokens, MOST)
        self.seconds += seconds
        self.distinct += distinct
        self.new_tokens = min(self.new_tokens + tokens, MOST)
