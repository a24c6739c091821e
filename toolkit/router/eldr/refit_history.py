"""What became of refits: totals for the metrics, the last few for people."""

from __future__ import annotations

from collections import Counter, deque
from time import time
from typing import Any, Literal

KEPT = 8

Cause = Literal["workers", "drift", "manual", "clock", "maps", "told"]
Result = Literal["adopted", "declined", "failed"]


class RefitHistory:
    """`totals` by (cause, result); `seconds` over `jobs` of refit processes, prepared ones too."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[Cause, Result]] = Counter()
        self.jobs = 0
        self.seconds = 0.0
        self.last: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def took(self, seconds: float) -> None:
        self.jobs += 1
        self.seconds += seconds

    def add(self, cause: Cause, result: Result, **numbers: Any) -> None:
        self.totals[cause, result] += 1
        entry = {"time": round(time(), 3), "cause": cause, "result": result, **numbers}
        if cause == "clock" and self.last and self.last[-1]["cause"] == cause:
            self.last.pop()  # one a second: the newest says it all
        self.last.append(entry)
