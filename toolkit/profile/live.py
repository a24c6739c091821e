"""A sample of live traffic, instead of calibration prompts.

The workers pick a share of requests by their ids and send what those were routed to; this process
reduces it to counts as it comes, in a thread: what the workers say meanwhile is read. Neither text
nor token ids leave a worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toolkit.profile.calibrate import Facts, facts, reduce
from toolkit.profile.calibration_prompts import CalibrationPrompt
from toolkit.profile.measure import Measured, new_session
from toolkit.profile.shards import Shard, Shards, joined
from toolkit.profile.tap import PHASES, Heard, PhaseRows, Tap, worker_urls
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import numpy as np

PERIOD_S = 1.0
WRITE_S = 15.0
"""So often what was counted is written: the sums of a large model are some hundred MiB."""
FORGET_S = 600.0
"""A request of which only one phase came is dropped after this time."""
MOST_BYTES = 2**30
"""Of counts that are kept, request by request: enough is known then."""
MOST_STEPS = 256
"""Decode and prefill steps that are kept of each second: a large deployment makes thousands."""


class Listened(NamedTuple):
    """Where it stands: requests, seconds left, and frames that were dropped."""

    requests: int
    left_s: float
    dropped: int


async def listen(
    router: str,
    share: float,
    seconds: float,
    folder: Path,
    progress: Callable[[Listened], None],
    api_key: str | None = None,
) -> Measured:
    """Sample the traffic of a running deployment for `seconds`, or until MOST_BYTES of counts are
    kept.

    `progress` is called about once a second. Requests that were retracted or resumed, or whose KV
    came back from host memory, are left out; and so are those of which something was read too
    slowly and dropped.

    Raises:
        ProfileError: the workers will not do, or nothing came.
    """
    if not 0 < share <= 1:
        raise ProfileError(f"--share {share} must be above 0 and at most 1")
    async with new_session(api_key) as session:
        roles = await worker_urls(session, router)
        async with Tap(session, list(roles), share) as tap:
            known = facts(tap.hellos)
            shards = Shards(folder, {"live": True, "fingerprint": known.first.fingerprint})
            if shards.done:
                raise ProfileError(
                    f"{folder} holds another sample: finish or remove it (--restart)"
                )
            sample = _Sample(known, shards)
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and sample.size < MOST_BYTES:
                await asyncio.sleep(min(PERIOD_S, left))
                await sample.take(tap)
                progress(Listened(len(sample.prompts), max(0.0, left), tap.heard.dropped))
    if not sample.prompts:
        raise ProfileError(
            f"no sampled request finished in {seconds:.0f} s: is there traffic? "
            f"(share {share:g}; raise --share or --live)"
        )
    await asyncio.to_thread(sample.write)
    return Measured(sample.prompts, shards.join(), shards.affinity, shards.layers, known, roles)


class _Sample:
    """What was kept so far. `size`: bytes of counts."""

    def __init__(self, known: Facts, shards: Shards) -> None:
        self._known = known
        self._shards = shards
        self.prompts: list[CalibrationPrompt] = []
        self.size = 0
        self._unwritten: list[Shard] = []
        self._written_at = time.monotonic()

    async def take(self, tap: Tap) -> None:
        """Count what is complete; what comes meanwhile is read, and waits for the next time."""
        heard = tap.heard
        complete: list[dict[str, PhaseRows]] = []
        for rid in [rid for rid, phases in heard.experts.items() if len(phases) == len(PHASES)]:
            phases = heard.take(rid)
            if all(rows.whole and len(rows.ids) for rows in phases.values()):
                complete.append(phases)
        _forget(heard)
        if complete:
            await asyncio.to_thread(self._count, heard.cut(), complete)

    def _count(self, heard: Heard, complete: list[dict[str, PhaseRows]]) -> None:
        first = len(self.prompts)
        self.prompts += [
            CalibrationPrompt(f"live-{first + i:06d}", "", (first + i,))
            for i in range(len(complete))
        ]
        indices = list(range(first, len(self.prompts)))
        nothing = [float("nan")] * len(complete)
        shard = reduce(
            heard, self._known, self._shards, self.prompts, indices, nothing, complete, seed=0
        )
        shard.steps = _thinned(shard.steps)
        self.size += shard.prefill_counts.nbytes + shard.decode_counts.nbytes
        self._unwritten.append(shard)
        if time.monotonic() - self._written_at > WRITE_S:
            self.write()

    def write(self) -> None:
        """Keep on disk what is not there yet."""
        if self._unwritten:
            self._shards.add(joined(self._unwritten))
            self._unwritten, self._written_at = [], time.monotonic()


def _thinned(steps: np.ndarray) -> np.ndarray:
    """At most MOST_STEPS of them, evenly over time."""
    if len(steps) <= MOST_STEPS:
        return steps
    return steps[:: -(-len(steps) // MOST_STEPS)]


def _forget(heard: Heard) -> None:
    """Half-arrived requests (aborted, or begun before we listened) do not pile up."""
    now = time.monotonic()
    for rid in list(heard.experts):
        newest = max(rows.heard for rows in heard.experts[rid].values())
        if now - newest > FORGET_S:
            heard.take(rid)
