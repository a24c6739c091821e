"""Sums over a worker's decode steps, for its router: what ELDR promises, as it happens.

`toolkit.contract.events.Steps` on the event stream of `patches.event_stream`, at most four times a
second a rank. All values but the rank are sums over the decode steps since the event before:
`requests` of batch sizes, `seconds` of step times (wall), `distinct` of the mean over MoE layers of
distinct experts; it is 0 where experts are not captured (a step with a token uses at least top_k of
them).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patches.step_log import FIELDS, StepBlock
from toolkit.contract.events import Steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTERVAL_S = 0.25
SUMS = ("steps", "requests", "kv_tokens", "seconds", "distinct")


def _publish(event: Steps) -> None:
    from patches.event_stream import HUB

    HUB.publish(event)


@dataclass
class RankSums:
    """What one rank has not published yet, in the order of SUMS."""

    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    moe: NDArray[np.bool_] | None = None
    """bool [layers]: those that have shown a distinct expert. The others are dense."""
    published: float = float("-inf")
    timer: asyncio.TimerHandle | None = None

    def add(self, rows: NDArray[np.float32]) -> None:
        """Decode rows of a block, float32 [steps, len(FIELDS) + layers]."""
        experts = rows[:, len(FIELDS) :]  # no columns when none of the steps had them captured
        distinct = 0.0
        if experts.shape[1]:
            moe: Any = experts.any(axis=0)
            if self.moe is not None:
                moe |= self.moe
            distinct = experts[:, moe].mean(axis=1).sum() if moe.any() else 0.0
            self.moe = moe
        named = [rows[:, FIELDS.index(name)].sum() for name in SUMS[1:-1]]
        self.sums = [
            a + float(b) for a, b in zip(self.sums, [len(rows), *named, distinct], strict=True)
        ]


class StepSummary:
    """Adds blocks of steps up and publishes the sums, the last ones after INTERVAL_S at most."""

    def __init__(
        self,
        publish: Callable[[Steps], None] = _publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._ranks: dict[int, RankSums] = {}

    def add(self, block: StepBlock) -> None:
        """Take in a block; call it on the event loop."""
        import numpy as np

        rows = np.frombuffer(block.rows, dtype=np.float32).reshape(block.shape)
        rows = rows[rows[:, FIELDS.index("decode")] == 1]
        if not len(rows):
            return
        rank = self._ranks.setdefault(block.dp_rank, RankSums())
        rank.add(rows)
        wait = rank.published + INTERVAL_S - self._clock()
        if wait <= 0:
            self._send(block.dp_rank)
        elif rank.timer is None:
            loop = asyncio.get_running_loop()
            rank.timer = loop.call_later(wait, self._send, block.dp_rank)

    def _send(self, dp_rank: int) -> None:
        rank = self._ranks[dp_rank]
        if rank.timer is not None:
            rank.timer.cancel()
            rank.timer = None
        rank.published = self._clock()
        sums, rank.sums = rank.sums, [0.0] * len(SUMS)
        steps, requests, kv_tokens, seconds, distinct = sums
        self._publish(
            Steps(int(steps), int(requests), int(kv_tokens), seconds, distinct, dp_rank=dp_rank)
        )


SUMMARY = StepSummary()
