"""Sums over a worker's decode steps, for its router: what ELDR promises, as it happens.

`toolkit.contract.events.Steps` on the event stream of `patches.streams.event_stream`, at most four
times a second a rank. All values but the rank are sums over the decode steps since the event
before: `requests` of batch sizes, `new_tokens` that they gave, `seconds` of step times (wall),
`distinct` of the mean over MoE layers of distinct experts; it is 0 where experts are not captured
(a step with a token uses at least top_k of them). Of ranks that share their experts
(`patches.streams.step_join`) `distinct` is the whole group's in every rank's sums, and comes when
all ranks have told: up to half a second after the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patches.steps.step_log import FIELDS, StepBlock
from toolkit.contract.events import Steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTERVAL_S = 0.25
SUMS = ("steps", "requests", "new_tokens", "kv_tokens", "seconds", "distinct")


@dataclass
class RankSums:
    """What one rank has not published yet, in the order of SUMS."""

    sums: list[float] = field(default_factory=lambda: [0.0] * len(SUMS))
    moe: NDArray[np.bool_] | None = None
    """bool [layers]: those that have shown a distinct expert. The others are dense."""
    published: float = float("-inf")
    timer: asyncio.TimerHandle | None = None

    def add(self, rows: NDArray[np.float32]) -> None:
        """Decode rows of a block, float32 [steps, len(FIELDS) + layers], without their experts."""
        named = [rows[:, FIELDS.index(name)].sum() for name in SUMS[1:-1]]
        self.sums = [a + float(b) for a, b in zip(self.sums, [len(rows), *named, 0.0], strict=True)]

    def add_experts(self, rows: NDArray[np.float32]) -> None:
        """The experts of such rows."""
        experts = rows[:, len(FIELDS) :]  # no columns when none of the steps had them captured
        if experts.shape[1]:
            moe: Any = experts.any(axis=0)
            if self.moe is not None:
                moe |= self.moe
            self.sums[-1] += float(experts[:, moe].mean(axis=1).sum()) if moe.any() else 0.0
            self.moe = moe


class StepSummary:
    """Adds blocks of steps up and publishes the sums, the last ones after INTERVAL_S at most."""

    def __init__(
        self,
        publish: Callable[[Steps], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._ranks: dict[int, RankSums] = {}

    def count(self, block: StepBlock) -> None:
        """Take in a block, all but its experts; call it on the event loop."""
        rows = _decode_rows(block)
        if len(rows):
            self._ranks.setdefault(block.dp_rank, RankSums()).add(rows)
            if block.group is not None:
                self._publish_soon(block.dp_rank)

    def count_experts(self, block: StepBlock) -> None:
        """The experts of a block that has been counted, and publish."""
        rows = _decode_rows(block)
        if len(rows):
            self._ranks.setdefault(block.dp_rank, RankSums()).add_experts(rows)
            self._publish_soon(block.dp_rank)

    def _publish_soon(self, dp_rank: int) -> None:
        rank = self._ranks[dp_rank]
        wait = rank.published + INTERVAL_S - self._clock()
        if wait <= 0:
            self._send(dp_rank)
        elif rank.timer is None:
            rank.timer = asyncio.get_running_loop().call_later(wait, self._send, dp_rank)

    def _send(self, dp_rank: int) -> None:
        rank = self._ranks[dp_rank]
        if rank.timer is not None:
            rank.timer.cancel()
            rank.timer = None
        rank.published = self._clock()
        sums, rank.sums = rank.sums, [0.0] * len(SUMS)
        steps, requests, tokens, kv_tokens, seconds, distinct = sums
        told = (int(steps), int(requests), int(kv_tokens), seconds, distinct)
        self._publish(Steps(*told, dp_rank=dp_rank, new_tokens=int(tokens)))


def _decode_rows(block: StepBlock) -> NDArray[np.float32]:
    import numpy as np

    rows = np.frombuffer(block.rows, dtype=np.float32).reshape(block.shape)
    decode: NDArray[np.float32] = rows[rows[:, FIELDS.index("decode")] == 1]
    return decode
