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

MOST_STEPS = 10_000
CHECK_S = 1.0
"""Between two looks for blocks that wait for too long."""
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
        self._told = 0
        """All ranks have told of their steps up to this one."""
        self._checked = 0.0
        self._held: dict[int, deque[_Held]] = {}
        self._used: dict[int, NDArray[np.uint8] | None] = {}
        """Of each step, uint8 [layers, width]; None where it is not known."""
        self._counts: dict[int, NDArray[np.float32] | None] = {}
        """Of those that every rank has told of: distinct experts [layers]."""

    def take(self, block: StepBlock) -> list[StepBlock]:
        """What may go now."""
        group = block.group
        if group is None:
            return [block]
        now = self._clock()
        self._upto[block.dp_rank] = group.upto
        if block.shape[0]:
            self._hold(block, now)
        told = min([self._upto.get(rank, 0) for rank in range(group.ranks)])
        if told == self._told and now - self._checked < CHECK_S:
            return []
        self._told, self._checked = told, now
        go: list[StepBlock] = []
        for held in self._held.values():
            while held and held[0].steps[-1] <= told:
                go.append(self._joined(held.popleft()))
            while held and held[0].since < now - HOLD_S:
                go.append(_unknown(held.popleft().block))
        self._forget()
        return go

    def _hold(self, block: StepBlock, now: float) -> None:
        import numpy as np

        assert block.group is not None
        steps = np.frombuffer(block.group.steps, np.int64).tolist()
        used = np.frombuffer(block.group.used, np.uint8).reshape(block.group.shape)
        known = np.any(used, axis=(1, 2))
        for step, mine, knows in zip(steps, used, known, strict=True):
            if step not in self._used:
                self._used[step] = mine.copy() if knows else None
                continue
            others = self._used[step]
            if others is not None:
                self._used[step] = _both(others, mine) if knows else None
        self._held.setdefault(block.dp_rank, deque()).append(_Held(block, steps, now))

    def _joined(self, held: _Held) -> StepBlock:
        whole = _unknown(held.block)
        counts = [self._count(step) for step in held.steps]
        return _with_counts(whole, counts)

    def _count(self, step: int) -> NDArray[np.float32] | None:
        import numpy as np

        if step not in self._counts:
            used = self._used.get(step)
            counts = None if used is None else np.bitwise_count(used).sum(axis=1, dtype=np.float32)
            self._counts[step] = counts
        return self._counts[step]

    def _forget(self) -> None:
        waiting = [held[0].steps[0] for held in self._held.values() if held]
        before = min([self._told + 1, *waiting])
        for known in (self._used, self._counts):
            for step in [step for step in known if step < before]:
                del known[step]
            while len(known) > MOST_STEPS:  # of a rank that never tells
                del known[min(known)]


def _both(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bits of either, in `one` where they have room there; uint8 [layers, width]."""
    import numpy as np

    if one.shape == other.shape:
        return np.bitwise_or(one, other, out=one)
    shape = [max(sizes) for sizes in zip(one.shape, other.shape, strict=True)]
    whole = np.zeros(shape, dtype=np.uint8)
    for each in (one, other):
        whole[: each.shape[0], : each.shape[1]] |= each
    return whole


def _unknown(block: StepBlock) -> StepBlock:
    """It without distinct experts."""
    import numpy as np

    rows = np.frombuffer(block.rows, np.float32).reshape(block.shape).copy()
    rows[:, len(FIELDS) :] = 0
    return replace(block, rows=rows.tobytes(), group=None)


def _with_counts(block: StepBlock, counts: list[NDArray[np.float32] | None]) -> StepBlock:
    """`counts`: [layers] of each row; those of a prefill stay 0."""
    import numpy as np

    rows = np.frombuffer(block.rows, np.float32).reshape(block.shape).copy()
    experts = rows[:, len(FIELDS) :]
    decode = (rows[:, FIELDS.index("decode")] == 1).tolist()
    for row, (is_decode, known) in enumerate(zip(decode, counts, strict=True)):
        if is_decode and known is not None:
            experts[row, : len(known)] = known
    return replace(block, rows=rows.tobytes())
