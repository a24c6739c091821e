"""A worker whose HTTP loop is held up, by a prompt of megabytes that it tokenises, is not dead."""

import asyncio
import io
import json
import time
from functools import partial
from typing import Any

import pytest

from tests.e2e import calls, workers
from toolkit.launch.running import Running
from toolkit.settings.router.config import RouterConfig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("held-up")]

HUNG_S = RouterConfig.model_fields["hung_s"].default
PROMPT = (" " * 999 + "a") * 16_000
"""Some 8 s of tokenising on one core, for a million tokens; no model takes it."""
TOKENS = 300


async def hold_up(url: str) -> tuple[int, float]:
    """Have a worker tokenise, past its router; the status, and how long /health took meanwhile."""
    async with calls.session() as http:
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 1}}
        data = io.BytesIO(json.dumps(body).encode())
        asked = asyncio.ensure_future(
            http.post(url + "/generate", data=data, headers={"Content-Type": "application/json"})
        )
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        async with http.get(url + "/health"):
            held = time.monotonic() - begin
        async with await asked as answer:
            return answer.status, held


async def longest_gap(url: str, seen: list[dict[str, Any]]) -> None:
    """Between two events of a worker, until cancelled: in `seen`, with the events."""
    last = time.monotonic()
    async with workers.events(url) as stream:
        async for event in stream:
            now = time.monotonic()
            seen.append(event | {"gap": now - last})
            last = now


@pytest.mark.slow
async def test_requests_outlive_a_tokenizer_that_is_busy_for_longer_than_hung_s(
    deployment: Running,
) -> None:
    victim = deployment.worker("decode-0")
    before = await workers.state(deployment.router_url)
    seen: list[dict[str, Any]] = []
    listening = asyncio.ensure_future(longest_gap(victim.url, seen))
    begun: set[int] = set()

    def mark(number: int, count: int) -> None:
        begun.add(number)

    async with calls.session() as http:
        streams = [
            asyncio.ensure_future(
                calls.generate(
                    http,
                    deployment.router_url,
                    calls.greedy(calls.prompt(f"held-{number}", 20), TOKENS, stream=True),
                    partial(mark, number),
                )
            )
            for number in range(6)
        ]

        async def all_begun() -> bool:
            return len(begun) == len(streams)

        await calls.until(all_begun, "all streams have begun")
        rows = (await workers.state(deployment.router_url))["workers"]
        assert next(row["inflight"] for row in rows if row["name"] == "decode-0")
        holding = asyncio.ensure_future(hold_up(victim.url))

        async def left_alone() -> bool:
            rows = (await workers.state(deployment.router_url))["workers"]
            return not next(row["healthy"] for row in rows if row["name"] == "decode-0")

        await calls.until(left_alone, "the router sends it nothing new")
        status, held = await holding
        answers = await asyncio.gather(*streams)
    listening.cancel()
    print(f"held up for {held:.1f} s; longest gap of events {max(e['gap'] for e in seen):.2f} s")
    assert status == 400
    assert held > HUNG_S, "the loop was not held up for long enough"
    assert max(event["gap"] for event in seen) < RouterConfig.model_fields["silent_s"].default
    assert max(event.get("held_up", 0.0) for event in seen) > HUNG_S - 1
    assert [answer.error for answer in answers] == [""] * len(answers)
    assert [len(answer.ids) for answer in answers] == [TOKENS] * len(answers)
    await workers.settled(deployment)
    after = await workers.state(deployment.router_url)
    assert (after["resumed"], after["retried"]) == (before["resumed"], before["retried"])
