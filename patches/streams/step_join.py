"""Distinct experts of a DP-attention group: the step logs of its ranks, joined by the step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from patches.steps.step_log import FIELDS, StepBlock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HOLD_S = 5.0
"""A block whose steps some rank says nothing of is let go after so long, with 0 for "not known"."""


@dataclass
class _Held:
    block: StepBlock
    steps: list[int]
    since: float


class StepJoin:
    """Blocks in, blocks out: those of a group when all its ranks have told of their steps, with the
    distinct experts of the whole group in every row. Others pass at once.

    A step is not known (0 in all layers) when one of its ranks ran a prefill, whose experts nobody
    counts, or had none captured.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._upto: dict[int, int] = {}
        self._held: dict[int, deque[_Held]] = {}
        self._used: dict[int, NDArray[np.uint8] | None] = {}
        """Of each step, uint8 [layers, width]; None where it is not known."""

    def take(self, block: StepBlock) -> list[StepBlock]:
        """What may go now."""
        group = block.group
        if group is None:
            return [block]
        self._upto[block.dp_rank] = group.upto
        if block.shape[0] or block.finished:
            self._hold(block)
        told = min(self._upto.get(rank, 0) for rank in range(group.ranks))
        late = self._clock() - HOLD_S
        go: list[StepBlock] = []
        for held in self._held.values():
            while held and (not held[0].steps or held[0].steps[-1] <= told):
                go.append(self._joined(held.popleft(), known=True))
            while held and held[0].since < late:
                go.append(self._joined(held.popleft(), known=False))
        self._forget(told)
        return go

    def _hold(self, block: StepBlock) -> None:
        import numpy as np

        assert block.group is not None
        steps = np.frombuffer(block.group.steps, np.int64).tolist()
        used = np.frombuffer(block.group.used, np.uint8).reshape(block.group.shape)
        for step, mine in zip(steps, used, strict=True):
            others = self._used.get(step, mine[:0])
            known = mine.any() and others is not None
            self._used[step] = _both(others, mine) if others is not None and known else None
        waiting = self._held.setdefault(block.dp_rank, deque())
        waiting.append(_Held(block, steps, self._clock()))

    def _joined(self, held: _Held, known: bool) -> StepBlock:
        import numpy as np

        block = held.block
        rows = np.frombuffer(block.rows, np.float32).reshape(block.shape)
        decode = rows[:, FIELDS.index("decode")] == 1
        own = rows[:, len(FIELDS) :]
        counts = np.zeros_like(own)
        for row, step in enumerate(held.steps):
            used = self._used.get(step)
            if known and decode[row] and used is not None:
                counts[row, : len(used)] = np.bitwise_count(used).sum(axis=1)
        whole = np.hstack([rows[:, : len(FIELDS)], counts])
        return replace(block, shape=whole.shape, rows=whole.tobytes(), group=None)

    def _forget(self, told: int) -> None:
        waiting = [each.steps[0] for held in self._held.values() for each in held if each.steps]
        before = min([told + 1, *waiting])
        for step in [step for step in self._used if step < before]:
            del self._used[step]


def _both(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bits of either; uint8 [layers, width], of which one may be smaller."""
    import numpy as np

    shape = [max(sizes) for sizes in zip(one.shape, other.shape, strict=True)]
    whole = np.zeros(shape, dtype=np.uint8)
    for each in (one, other):
        whole[: each.shape[0], : each.shape[1]] |= each
    return whole
