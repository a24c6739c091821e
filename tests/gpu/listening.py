"""What a deployment's workers say of their own steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.e2e import calls
from toolkit.launch.running import Running
from toolkit.profile.measure import new_session
from toolkit.profile.tap import Tap

if TYPE_CHECKING:
    import numpy as np

QUIET_S = 0.6
"""Workers send their rows every 0.25 s, and at once when nothing runs any more."""


@dataclass
class Steps:
    """Rows of one worker's steps as they come; `clear` before what is to be measured."""

    tap: Tap
    url: str
    quiet_s: float = QUIET_S

    def clear(self) -> None:
        for blocks in self.tap.heard.steps.values():
            blocks.clear()

    async def taken(self) -> np.ndarray:
        """Rows since the last `clear`, once nothing comes any more."""
        seen = -1
        while seen != (seen := sum(map(len, self.tap.heard.steps.get((self.url, 0), ())))):
            await asyncio.sleep(self.quiet_s)
        rows = self.tap.heard.rank_steps((self.url, 0))
        self.clear()
        return rows

    def column(self, rows: np.ndarray, name: str) -> np.ndarray:
        """One named column of [steps, columns]."""
        return rows[:, self.tap.heard.columns.index(name)]

    def distinct(self, rows: np.ndarray) -> np.ndarray:
        """[steps]: distinct experts of each, summed over layers; 0 where they are not known."""
        return rows[:, len(self.tap.heard.columns) :].sum(axis=1)


async def whole_batch(
    url: str, steps: Steps, bodies: Sequence[dict[str, Any]]
) -> tuple[np.ndarray, list[calls.Answer]]:
    """All of them at once: rows of the decode steps that had all of them, and their answers.
    AssertionError: one was lost, or never were all in a step."""
    steps.clear()
    answers = await calls.all_of(url, bodies, len(bodies))
    lost = [answer.error for answer in answers if answer.error]
    assert not lost, f"{len(lost)} of {len(bodies)} requests were lost: {lost[0]}"
    rows = await steps.taken()
    all_there = steps.column(rows, "requests") == len(bodies)
    rows = rows[(steps.column(rows, "decode") == 1) & all_there]
    assert len(rows), f"never were all {len(bodies)} requests in a step: raise the tokens"
    return rows, answers


@asynccontextmanager
async def steps_at(url: str) -> AsyncIterator[Steps]:
    """Of the worker that answers there."""
    async with new_session() as session, Tap(session, [url], events=False) as tap:
        yield Steps(tap, url)


@asynccontextmanager
async def steps_of(up: Running, name: str) -> AsyncIterator[Steps]:
    """Of the worker with that name."""
    async with steps_at(up.worker(name).url) as steps:
        yield steps
