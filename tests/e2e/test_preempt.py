"""Best-effort prompts that are stopped between layers on real workers: who waits, and that no token
changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import settled
from toolkit.contract.headers import CLASS
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LS, BE = "latency_sensitive", "best_effort"
TOKENS = 4
LONG, SHORT = 3000, 40


def described(name: str, mode: str) -> dict[str, Any]:
    """A prefill and a decode worker, or one worker that does both; a chunk holds a long prompt."""
    role: dict[str, Any] = {
        "kv_tokens": 16384,
        "max_running": 16,
        "preempt": "strict",
        "args": {"chunked-prefill-size": 4096, "disable-radix-cache": True},
    }
    own: dict[str, Any] = {"prefill": role, "decode": {"kv_tokens": 16384, "max_running": 16}}
    if mode == "plain":
        own = {"worker": role}
    router = {"kind": "toolkit", "classes": {}}
    return {"name": name, "device": "cpu", "mode": mode, "router": router, **own}


@pytest.fixture(scope="module", params=["pd", "plain"])
def up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    mode = request.param
    with deployed(described(f"preempt-{mode}", mode), tmp_path_factory.mktemp(mode)) as running:
        yield running


async def ask(
    http: aiohttp.ClientSession, url: str, ids: list[int], kind: str
) -> tuple[list[int], float, float]:
    """Tokens of a streamed answer, and when the first and the last one came."""
    first = 0.0
    body = calls.greedy(ids, TOKENS, stream=True)
    got: list[int] = []
    async with http.post(url + "/generate", json=body, headers={CLASS: kind}) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                first = first or time.monotonic()
                event = json.loads(line[6:])
                assert "error" not in event, event
                got = event["output_ids"]
    return got, first, time.monotonic()


def test_who_is_in_a_hurry_does_not_wait_for_a_long_prompt(
    up: Running, reference: Reference
) -> None:
    async def main() -> None:
        url = up.router_url
        long, short = calls.prompt("preempt-long", LONG), calls.prompt("preempt-short", SHORT)
        async with calls.session() as http:
            await ask(http, url, calls.prompt("warm", 30), LS)
            began = time.monotonic()
            alone = await ask(http, url, long, BE)
            takes = alone[1] - began
            effort = asyncio.create_task(ask(http, url, long[::-1], BE))
            await asyncio.sleep(takes / 4)
            sent = time.monotonic()
            hurry = await ask(http, url, short, LS)
            behind = await effort
        waited, both = hurry[1] - sent, behind[1] - sent
        print(f"long {takes:.2f} s, short {waited:.3f} s, both {both:.2f} s")
        assert hurry[1] < behind[1], "the long prompt was not stopped"
        assert hurry[1] - sent < takes / 2
        assert hurry[0] == reference.greedy(short, TOKENS)
        assert behind[0] == reference.greedy(long[::-1], TOKENS)
        assert alone[0] == reference.greedy(long, TOKENS)
        await settled(up)

    calls.run(main())
