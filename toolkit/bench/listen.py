"""Listens to the decode workers while a workload plays; that it cannot is no error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.bench.decode import DecodeSteps, RankSteps
from toolkit.bench.watch import key
from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import aiohttp
    from numpy.typing import NDArray

    from toolkit.profile.tap import Tap

CONNECT_S = 5.0
LAST_ROWS_S = 1.0
"""How long to wait for the last block of a run: workers send one every 0.25 s, and at once when
their last request ends."""


class DecodeWatch:
    """`async with DecodeWatch(session, snapshot) as watch`, then `await watch.take(requests)`.

    `snapshot` is the router's `GET /workers`, None when there is none. `note` says in one line why
    nothing (or not all) was heard. Only what a worker logs anyway is sent: its experts are not
    asked for, and its events are not followed.
    """

    def __init__(self, session: aiohttp.ClientSession, snapshot: Mapping[str, Any] | None) -> None:
        self._headers = dict(session.headers)
        self._headers.pop("Authorization", None)  # the router's key is none of the workers'
        rows = [w for w in (snapshot or {}).get("workers", ()) if w["role"] != "prefill"]
        hidden = any("url" not in w for w in rows)
        rows = [] if hidden else rows
        self._names = {(w["url"], w.get("dp_rank") or 0): key(w) for w in rows}
        self._session: aiohttp.ClientSession | None = None
        self._tap: Tap | None = None
        self.note = "" if snapshot is not None else "this is no toolkit router"
        if hidden:
            self.note = "the router tells its workers' addresses to its admin only"

    async def __aenter__(self) -> DecodeWatch:
        if not self._names:
            return self
        import aiohttp

        from toolkit.profile.tap import Tap

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
            read_bufsize=2**20,
        )
        tap = Tap(self._session, [url for url, _ in self._names], events=False)
        try:
            await asyncio.wait_for(tap.__aenter__(), CONNECT_S)
            self._tap = tap
        except TimeoutError:
            self.note = f"a worker did not answer within {CONNECT_S:g} s"
        except ProfileError as error:
            self.note = str(error)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tap is not None:
            await self._tap.close()
        if self._session is not None:
            await self._session.close()

    async def take(self, requests: int) -> DecodeSteps | None:
        """What was heard; `requests` of more than one token have finished, and so many rows are
        waited for, LAST_ROWS_S at most."""
        tap = self._tap
        if tap is None:
            return None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_ROWS_S
        while tap.lost is None and loop.time() < deadline:
            blocks = [rows for every in tap.heard.finished.values() for rows in every]
            if sum(map(len, blocks)) >= requests:
                break
            await asyncio.sleep(0.01)
        self.note = tap.lost or self.note
        return heard(tap, self._names)


def heard(tap: Tap, names: Mapping[tuple[str, int], str]) -> DecodeSteps:
    """The decode steps and finished requests of every worker in `names` (url, DP rank)."""
    import numpy as np

    columns, finished_columns = tap.heard.columns, tap.heard.finished_columns

    def ours(rank: tuple[str, int], rows: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
        rows = rows.copy()
        if len(rows):
            rows[:, names.index("end")] += tap.heard.behind.get(rank, 0.0)
        return rows

    ranks = []
    for rank, name in names.items():
        steps = ours(rank, tap.heard.rank_steps(rank), columns)
        if len(steps):
            steps = steps[steps[:, columns.index("decode")] == 1]
        blocks = tap.heard.finished.get(rank)
        done = np.concatenate(blocks) if blocks else np.zeros((0, len(finished_columns)))
        ranks.append(RankSteps(name, steps, ours(rank, done, finished_columns)))
    cpu = all(hello.device == "cpu" for hello in tap.hellos.values())
    cpu = cpu and (not columns or "cpu_seconds" in columns)  # workers of an older toolkit have none
    return DecodeSteps(tuple(ranks), columns, finished_columns, "cpu" if cpu else "wall")
