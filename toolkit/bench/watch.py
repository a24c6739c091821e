"""Watches the workers during a run: a run that lost one is an error, not a result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.bench.target import get_json

if TYPE_CHECKING:
    import aiohttp

PERIOD_S = 1.0


def key(worker: Mapping[str, Any]) -> str:
    """The name of one row of `GET /workers`: the server, and its DP rank when it has several."""
    rank = worker.get("dp_rank")
    return f"{worker['name']}/{rank}" if rank else str(worker["name"])


@dataclass
class WorkerWatch:
    """Snapshots of `GET /workers` before, during and after a run, of several routers added up.
    Without that route (a plain server, another router) it sees nothing and says so by `before is
    None`."""

    session: aiohttp.ClientSession
    urls: Sequence[str]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    faults: list[str] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WorkerWatch:
        self.before = await self._read()
        if self.before is not None:
            self.faults += unhealthy(self.before, "before the run")
            self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is None or self.before is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.after = await self._read()
        if self.after is None:
            self.faults.append("the router no longer answers GET /workers")
            return
        self.faults += unhealthy(self.after, "after the run")
        self.faults += lost_between(self.before, self.after)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            now = await self._read()
            seen = ["the router stopped answering"] if now is None else unhealthy(now, "during it")
            self.faults += [fault for fault in seen if fault not in self.faults]

    async def _read(self) -> dict[str, Any] | None:
        import aiohttp

        answers: list[dict[str, Any]] = []
        for url in self.urls:
            try:
                answer = await get_json(self.session, url + "/workers")
            except (aiohttp.ClientError, TimeoutError, OSError):
                return None
            if not isinstance(answer, dict) or "workers" not in answer:
                return None
            answers.append(answer)
        return added_up(answers)


def added_up(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several routers say of the same workers: the first one's words, with what each counts
    for itself added up. A worker is healthy where all say so."""
    first, *others = answers
    result = {**first, "workers": [dict(row) for row in first["workers"]]}
    rows = {key(row): row for row in result["workers"]}
    for other in others:
        for counter in ("resumed", "retried"):
            result[counter] = (result.get(counter) or 0) + (other.get(counter) or 0)
        for theirs in other["workers"]:
            row = rows.get(key(theirs))
            if row is None:
                result["workers"].append(theirs)
                continue
            row["healthy"] = row["healthy"] and theirs["healthy"]
            for counter in ("completed", "failed", "inflight"):
                row[counter] = (row.get(counter) or 0) + (theirs.get(counter) or 0)
    return result


def unhealthy(snapshot: Mapping[str, Any], when: str) -> list[str]:
    """A line per worker that the router calls unhealthy."""
    return [
        f"worker {key(worker)} was unhealthy {when}"
        for worker in snapshot["workers"]
        if not worker["healthy"]
    ]


def lost_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What two snapshots say about workers lost in between, even if they are back by now.

    `failed` counts requests that a worker failed, `resumed` and `retried` those that went on or
    ran again elsewhere, `restarts` (where given) new lives of the same worker.
    """
    faults = []
    old = {key(worker): worker for worker in before["workers"]}
    new = {key(worker): worker for worker in after["workers"]}
    faults += [f"worker {name} disappeared" for name in sorted(old.keys() - new.keys())]
    for name in sorted(old.keys() & new.keys()):
        for counter, text in (("failed", "failed {} request(s)"), ("restarts", "restarted {} x")):
            grown = (new[name].get(counter) or 0) - (old[name].get(counter) or 0)
            if grown:
                faults.append(f"worker {name} " + text.format(grown))
    for counter in ("resumed", "retried"):
        grown = (after.get(counter) or 0) - (before.get(counter) or 0)
        if grown:
            faults.append(f"{grown} request(s) had to be {counter} on another worker")
    return faults


def requests_per_worker(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> dict[str, int] | None:
    """Requests that each worker completed between two snapshots."""
    if before is None or after is None:
        return None
    old = {key(worker): int(worker.get("completed") or 0) for worker in before["workers"]}
    return {
        key(worker): int(worker.get("completed") or 0) - old.get(key(worker), 0)
        for worker in after["workers"]
    }
