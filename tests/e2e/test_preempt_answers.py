"""Best-effort answers that stand still on a real decode worker: who waits, and that no token
changes."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.test_preempt import BE, LS, ask, empty
from tests.e2e.workers import metrics, settled
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("preemption")]

LONG, SHORT = 200, 6
"""Tokens of answers."""
SLOTS = 2
KV = 1700
"""Both best-effort answers are let in, and beside them a prompt of 700 tokens is not: SGLang wants
512 tokens more for each."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-classes.yaml, the decode worker with few slots and little KV."""
    small = {"kv_tokens": KV, "max_running": SLOTS, "preempt": {"pauses": 3, "seconds": 20}}
    described = shipped("cpu-classes", name="preempt-answers", decode=small)
    with deployed(described, tmp_path_factory.mktemp("answers")) as running:
        yield running


@pytest.mark.parametrize("prompt", [30, 700], ids=["a-slot", "kv"])
async def test_answers_stand_still_for_those_latency_sensitive(
    up: Running, reference: Reference, prompt: int
) -> None:
    """What lacks is a slot, or KV besides."""
    url = up.router_url
    async with calls.session() as http:
        long = [calls.prompt(f"answer-{prompt}-{n}", 100) for n in range(SLOTS)]
        efforts = [asyncio.create_task(ask(http, url, ids, BE, LONG)) for ids in long]
        await asyncio.sleep(0.5)
        hurries = []
        for turn in range(3):
            ids = calls.prompt(f"hurry-{prompt}-{turn}", prompt)
            got, _, ended = await ask(http, url, ids, LS, SHORT)
            assert got == reference.greedy(ids, SHORT, got)
            hurries.append(ended)
        for ids, task in zip(long, efforts, strict=True):
            got, _, ended = await task
            assert got == reference.greedy(ids, LONG, got)
            assert ended > hurries[-1], "it did not stand still"
    await settled(up)
    await calls.until(partial(empty, url), "no KV token is left behind")
    assert [worker.restarts for worker in up.workers] == [0] * len(up.workers)
    gave_way = await metrics(url)
    assert gave_way['toolkit_router_gave_way_total{kind="answer",worker="decode-0"}'] >= 1
    assert gave_way['toolkit_router_gave_way_seconds_total{kind="answer",worker="decode-0"}'] > 0


async def test_a_client_that_goes_away_while_its_answer_stands_still_leaves_nothing(
    up: Running,
) -> None:
    url = up.router_url
    async with calls.session() as http:
        efforts = [
            asyncio.create_task(ask(http, url, calls.prompt(f"gone-{n}", 100), BE, LONG))
            for n in range(SLOTS)
        ]
        await asyncio.sleep(0.5)
        hurries = [
            asyncio.create_task(ask(http, url, calls.prompt(f"stay-{n}", 30), LS, 60))
            for n in range(SLOTS)
        ]
        await asyncio.sleep(0.5)
        for task in efforts:
            task.cancel()
        await asyncio.gather(*hurries)
    await settled(up)
    await calls.until(partial(empty, url), "no KV token is left behind")


@pytest.mark.parametrize("kind", [LS, BE])
async def test_a_prompt_as_long_as_the_pool_is_served(
    up: Running, reference: Reference, kind: str
) -> None:
    """With SGLang's reserve on top it is longer; who stands before and behind it is served, too."""
    url = up.router_url
    long = [calls.prompt(f"pool-{kind}-{n}", KV - 40) for n in range(2)]
    short = [calls.prompt(f"beside-{kind}-{n}", 100) for n in range(3)]
    async with calls.session() as http:
        asked = [(short[0], BE), (long[0], kind), (short[1], BE), (long[1], kind), (short[2], LS)]
        tasks = [ask(http, url, ids, of, 30) for ids, of in asked]
        for (ids, _), (got, _, _) in zip(asked, await asyncio.gather(*tasks), strict=True):
            assert got == reference.greedy(ids, 30, got)
    await settled(up)
    await calls.until(partial(empty, url), "no KV token is left behind")
    assert [worker.restarts for worker in up.workers] == [0] * len(up.workers)
