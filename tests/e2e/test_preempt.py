"""Best-effort prompts that are stopped between layers on real workers: who waits, and that no token
changes."""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.workers import metrics, settled, state
from toolkit.contract.headers import CLASS
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("preemption")]

LS, BE = "latency_sensitive", "best_effort"
TOKENS = 4
LONG, SHORT = 3000, 40
TRIES = 3
"""Of what is timed."""


def described(name: str, mode: str) -> dict[str, Any]:
    """launch/cpu-classes.yaml; or one worker that does both, the shortest prompt first, or as two
    tensor-parallel ranks under `tp`. A chunk holds a long prompt, but under `dp`: there two
    ranks share their attention's steps, so that prompts are stopped between chunks only."""
    role: dict[str, Any] = {
        "kv_tokens": 16384,
        "max_running": 16,
        "preempt": "strict",
        "args": {"chunked-prefill-size": 4096, "disable-radix-cache": True},
    }
    if mode == "pd":
        return shipped("cpu-classes", name=name, prefill={"args": {"disable-radix-cache": True}})
    if mode == "dp":
        role |= {"tp": 2, "dp": 2, "dp_attention": True}
        role["args"] |= {"chunked-prefill-size": 1024}  # of both ranks together
    own: dict[str, Any] = {"prefill": role, "decode": {"kv_tokens": 16384, "max_running": 16}}
    kind = "pd" if mode in ("pd", "dp") else "plain"
    if kind == "plain":
        own = {"worker": role | ({"tp": 2} if mode == "tp" else {"waiting": "sjf"})}
    router = {"kind": "toolkit", "classes": {}}
    return {"name": name, "device": "cpu", "mode": kind, "router": router, **own}


# A chunk of a prompt is stopped in the same way on a worker that also decodes ("plain"), and the
# prompt of 6,000 tokens is stopped between chunks, as all are under "dp".
@pytest.fixture(
    scope="module",
    params=["pd", *(pytest.param(mode, marks=pytest.mark.full) for mode in ("plain", "dp")), "tp"],
)
def up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    mode = request.param
    with deployed(described(f"preempt-{mode}", mode), tmp_path_factory.mktemp(mode)) as running:
        yield running


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    ids: list[int],
    kind: str,
    tokens: int = TOKENS,
    user: str = "",
) -> tuple[list[int], float, float]:
    """Tokens of a streamed answer, and when the first and the last one came."""
    first = 0.0
    body = calls.greedy(ids, tokens, stream=True) | ({"routing_key": user} if user else {})
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


async def mid_way(
    http: aiohttp.ClientSession, url: str, name: str, takes: float
) -> tuple[Any, Any, float]:
    """A long best-effort prompt, and a short a latency-sensitive request when a quarter of it is
    computed."""
    effort = asyncio.create_task(ask(http, url, calls.prompt(f"{name}-long", LONG), BE))
    await asyncio.sleep(takes / 4)
    sent = time.monotonic()
    latency_sensitive = await ask(http, url, calls.prompt(f"{name}-short", SHORT), LS)
    return await effort, latency_sensitive, sent


async def once(http: aiohttp.ClientSession, url: str, name: str, reference: Reference) -> str:
    """What was not as it should be; of the times alone, which another test beside this one can
    only make longer. Every token must be right, always."""
    began = time.monotonic()
    alone = await ask(http, url, calls.prompt(f"{name}-alone", LONG), BE)
    takes = alone[1] - began
    began = time.monotonic()
    effort, latency_sensitive, sent = await mid_way(http, url, name, takes)
    waited, both = latency_sensitive[1] - sent, effort[1] - began
    print(f"long {takes:.3f} s, short {waited:.3f} s, long that was stopped {both:.3f} s")
    assert alone[0] == reference.greedy(calls.prompt(f"{name}-alone", LONG), TOKENS, alone[0])
    assert effort[0] == reference.greedy(calls.prompt(f"{name}-long", LONG), TOKENS, effort[0])
    short = calls.prompt(f"{name}-short", SHORT)
    assert latency_sensitive[0] == reference.greedy(short, TOKENS, latency_sensitive[0])
    if sent - began > (effort[1] - began) / 2:
        return "the short one came too late to say anything"
    assert latency_sensitive[1] < effort[1], "the long prompt was not stopped"
    if waited > takes / 2:
        return f"the short one waited {waited:.3f} s, of {takes:.3f} that the long one takes"
    if both > 2 * takes:
        return f"it was not resumed where it was: {both:.3f} s, and alone {takes:.3f}"
    return ""


async def test_who_is_latency_sensitive_does_not_wait_for_a_long_prompt(
    up: Running, reference: Reference, request: pytest.FixtureRequest
) -> None:
    url = up.router_url
    async with calls.session() as http:
        await ask(http, url, calls.prompt("warm", SHORT), LS)
        wrong = ""
        for name in (f"hurry-{number}" for number in range(TRIES)):
            wrong = await once(http, url, name, reference)
            if not wrong:
                break
        assert not wrong
    await settled(up)
    assert [worker.restarts for worker in up.workers] == [0] * len(up.workers)
    if request.node.callspec.params["up"] == "dp":  # between chunks only: that is an order
        return
    gave_way = await metrics(up.router_url)
    name = up.workers[0].name
    assert gave_way[f'toolkit_router_gave_way_total{{kind="prompt",worker="{name}"}}'] >= 1
    assert gave_way[f'toolkit_router_gave_way_seconds_total{{kind="prompt",worker="{name}"}}'] > 0


async def test_many_of_both_keep_every_token_and_leave_nothing_behind(
    up: Running, reference: Reference
) -> None:
    """Best-effort prompts of one chunk and of two, some whose clients go away, and short ones in a
    hurry all the time."""
    lengths = [1200, 2500, 6000, 1800, 3000]
    url = up.router_url
    async with calls.session() as http:

        async def effort(number: int, length: int) -> list[int]:
            got, _, _ = await ask(http, url, calls.prompt(f"many-{number}", length), BE)
            return got

        async def gone(number: int) -> None:
            try:
                async with asyncio.timeout(0.15 * (number + 1)):
                    await ask(http, url, calls.prompt(f"gone-{number}", 3000), BE)
            except TimeoutError:
                pass

        efforts = [
            asyncio.create_task(effort(number, length)) for number, length in enumerate(lengths)
        ]
        left = [asyncio.create_task(gone(number)) for number in range(6)]
        hurries: dict[str, list[int]] = {}
        while not all(task.done() for task in efforts):
            name = f"now-{len(hurries)}"
            hurries[name] = (await ask(http, url, calls.prompt(name, SHORT), LS))[0]
            await asyncio.sleep(0.03)
        await asyncio.gather(*left)
        for number, length in enumerate(lengths):
            got = efforts[number].result()
            assert got == reference.greedy(calls.prompt(f"many-{number}", length), TOKENS, got)
        assert len(hurries) > 3
        for name, got in hurries.items():
            assert got == reference.greedy(calls.prompt(name, SHORT), TOKENS, got)
    await settled(up)
    await calls.until(partial(empty, url), "no KV token is left behind")
    assert [worker.restarts for worker in up.workers] == [0] * len(up.workers)


async def empty(url: str) -> bool:
    """No worker has a request or a KV token."""
    rows = (await state(url))["workers"]
    loads = [row["load"] for row in rows if row["load"] is not None]
    return bool(loads) and not any(load["used_tokens"] or load["running"] for load in loads)
