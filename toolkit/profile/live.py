"""A sample of live traffic, instead of calibration prompts.

The workers pick a share of requests by their ids and send what those were routed to; this process
reduces it to counts at once. Neither text nor token ids leave a worker.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.profile.calibrate import Facts, facts, reduce
from toolkit.profile.calibration_prompts import CalibrationPrompt
from toolkit.profile.measure import Measured, new_session
from toolkit.profile.shards import Shards
from toolkit.profile.tap import PHASES, PhaseRows, Tap, worker_urls
from toolkit.profile_folder.errors import ProfileError

PERIOD_S = 1.0
FORGET_S = 600.0
"""A request of which only one phase came is dropped after this time."""


async def listen(
    router: str,
    share: float,
    seconds: float,
    folder: Path,
    progress: Callable[[int, float], None],
    api_key: str | None = None,
) -> Measured:
    """Sample the traffic of a running deployment for `seconds`.

    `progress(requests, seconds left)` is called about once a second. Requests that were retracted
    or resumed, or whose KV came back from host memory, are left out.

    Raises:
        ProfileError: the workers will not do, or nothing came.
    """
    if not 0 < share <= 1:
        raise ProfileError(f"--share {share} must be above 0 and at most 1")
    prompts: list[CalibrationPrompt] = []
    async with new_session(api_key) as session:
        roles = await worker_urls(session, router)
        async with Tap(session, list(roles), share) as tap:
            known = facts(tap.hellos)
            shards = Shards(folder, {"live": True, "fingerprint": known.first.fingerprint})
            if shards.done:
                raise ProfileError(
                    f"{folder} holds another sample: finish or remove it (--restart)"
                )
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(PERIOD_S, left))
                _keep(tap, known, shards, prompts)
                progress(len(prompts), max(0.0, left))
    if not prompts:
        raise ProfileError(
            f"no sampled request finished in {seconds:.0f} s: is there traffic? "
            f"(share {share:g}; raise --share or --live)"
        )
    joined = shards.join()
    return Measured(prompts, joined, shards.affinity, shards.layers, known, roles)


def _keep(tap: Tap, known: Facts, shards: Shards, prompts: list[CalibrationPrompt]) -> None:
    """Move what is complete from the tap into a shard."""
    complete: list[dict[str, PhaseRows]] = []
    for rid in [rid for rid, phases in tap.heard.experts.items() if len(phases) == len(PHASES)]:
        phases = tap.heard.experts.pop(rid)
        if all(rows.whole and len(rows.ids) for rows in phases.values()):
            complete.append(phases)
    _forget(tap.heard.experts)
    if not complete:
        return
    first = len(prompts)
    prompts += [
        CalibrationPrompt(f"live-{first + i:06d}", "", (first + i,)) for i in range(len(complete))
    ]
    indices = list(range(first, len(prompts)))
    nothing = [float("nan")] * len(complete)
    shards.add(reduce(tap, known, shards, prompts, indices, nothing, complete, seed=0))
    for blocks in (*tap.heard.steps.values(), *tap.heard.finished.values()):
        blocks.clear()


def _forget(experts: dict[str, dict[str, Any]]) -> None:
    """Half-arrived requests (aborted, or begun before we listened) do not pile up."""
    now = time.monotonic()
    for rid in list(experts):
        newest = max(rows.heard for rows in experts[rid].values())
        if now - newest > FORGET_S:
            del experts[rid]
