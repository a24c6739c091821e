"""Requests that move on a deployment of real workers: asked, moved, and compared."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.e2e import calls
from toolkit.launch.running import Running


class Load:
    """Greedy streams without a pause, one for each body at a time. Each must say what it says
    undisturbed; what does not is counted and kept."""

    def __init__(self, deployment: Running, bodies: Sequence[dict[str, Any]]) -> None:
        self._url = deployment.router_url
        self._bodies = bodies
        self._expected: list[list[int]] = []
        self.over = False
        self.streams = self.tokens = 0
        self.lost: list[str] = []
        self.changed: list[int] = []
        """Of which body."""
        self.gap_s = 0.0
        """The longest pause that a client saw between two events."""

    async def learn(self, at_a_time: int = 8) -> None:
        """What each says undisturbed."""
        answers = await calls.all_of(self._url, self._bodies, at_a_time)
        assert not [answer.error for answer in answers if answer.error]
        self._expected = [answer.ids for answer in answers]

    async def run(self) -> None:
        """Until `over` is set, each stream to its end."""
        async with calls.session() as http:
            await asyncio.gather(*(self._one(http, n) for n in range(len(self._bodies))))

    async def _one(self, http: aiohttp.ClientSession, n: int) -> None:
        while not self.over:
            last, had = 0.0, 0

            def seen(count: int) -> None:
                nonlocal last, had
                now = time.monotonic()
                self.gap_s = max(self.gap_s, now - last if last else 0.0)
                self.tokens += count - had
                last, had = now, count

            answer = await calls.generate(http, self._url, self._bodies[n], seen)
            if answer.error:
                self.lost.append(answer.error)
            elif answer.ids != self._expected[n]:
                self.changed.append(n)
            self.streams += 1


async def migrate(
    http: aiohttp.ClientSession, deployment: Running, **body: Any
) -> list[dict[str, Any]]:
    """POST /admin/migrate: what became of each request; nothing of one that does not run."""
    url = deployment.admin_url + "/admin/migrate"
    async with http.post(url, json=body) as response:
        told = await response.json()
        if response.status == 404:
            return []
        assert response.status == 200, told
        return told["moves"]
