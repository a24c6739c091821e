"""The decode worker of a long prompt is chosen while its last chunks run, its KV leaves meanwhile,
and nothing is lost or changed: workers killed at that moment included."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.test_preempt import BE, LS, ask
from tests.e2e.workers import events, metrics, settled, state, victim
from tests.sizes import size
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.touched("early-choice")]

CHUNK, CHUNKS, TOKENS = 256, 10, 24
RECIPE: dict[str, Any] = {
    "name": "early-choice",
    "device": "cpu",
    "model": "embedded",
    "prefill": {
        "kv_tokens": 24576,
        "max_running": 8,
        "early_choice": 0,
        "args": {"chunked-prefill-size": CHUNK},
    },
    "decode": {"replicas": 2, "kv_tokens": 16384, "max_running": 8},
    "router": {"decode_policy": "eldr", "profile": "embedded", "hung_s": 40},
}
OVERLAP = {"overlap": False, "one by one": True}


@pytest.fixture(scope="module", params=OVERLAP, ids=str)
def up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    flags = RECIPE["prefill"]["args"] | {"disable-overlap-schedule": OVERLAP[request.param]}
    recipe = RECIPE | {"prefill": RECIPE["prefill"] | {"args": flags}}
    with (
        pytest.MonkeyPatch.context() as patch,
        deployed(recipe, tmp_path_factory.mktemp("early-choice")) as running,
    ):
        patch.setenv(WORKER_KEY_VARIABLE, running.worker_key)
        calls.run(measured(running))
        yield running


async def measured(running: Running) -> None:
    """The prefill worker knows its pace: it has run chunks, and sent KV."""
    asked = [calls.prompt(f"pace-{n}", 4 * CHUNK) for n in range(2)]
    for ids in asked:
        bodies = [calls.greedy(ids, 2, stream=False)]
        (answer,) = await calls.all_of(running.router_url, bodies, 1)
        assert not answer.error


def prompts(of: str, count: int) -> list[list[int]]:
    return [calls.prompt(f"{of}-{n}", CHUNK * CHUNKS - 50 + 61 * n) for n in range(count)]


async def chosen_early(running: Running) -> int:
    return int((await metrics(running.router_url))["toolkit_router_chosen_early_total"])


def test_answers_are_the_models_and_kv_goes_while_the_prompt_runs(
    up: Running, reference: Reference
) -> None:
    calls.run(alike(up, reference))


async def alike(up: Running, reference: Reference) -> None:
    prefill = next(worker for worker in up.workers if worker.role == "prefill")
    asked = prompts("alike", size(change=6, whole=9))
    rooms: dict[str, dict[str, Any]] = {}
    before, located = await chosen_early(up), (await state(up.router_url))["eldr"]["located"]
    async with events(prefill.url) as stream:
        heard = asyncio.create_task(listen(stream, rooms, len(asked)))
        bodies = [calls.greedy(ids, TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
        answers = await calls.all_of(up.router_url, bodies, 3)
        await asyncio.wait_for(heard, 30)
    assert [answer.error for answer in answers] == [""] * len(asked)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
    early = await chosen_early(up) - before
    assert early == len(asked), "each of them has ten chunks"
    assert (await state(up.router_url))["eldr"]["located"] - located == len(asked)
    for room in rooms.values():
        left = room["near"]["left"]
        assert 0 < left < room["near"]["prompt_tokens"] - CHUNK
        tokens = room["near"]["signature"]["tokens"]
        assert tokens == room["near"]["prompt_tokens"] - left
        assert room["near"]["signature"]["complete"]
        assert room["done"]["left"] == 0
        assert room["done"]["signature"]["tokens"] == room["done"]["prompt_tokens"]
        assert room["transfer"]["ahead"], "its KV waited for the end of the prompt"


async def listen(
    stream: AsyncIterator[dict[str, Any]], rooms: dict[str, dict[str, Any]], count: int
) -> None:
    """What the prefill worker says of each request, until it has said all of `count`."""
    async for event in stream:
        kind = event["type"]
        if kind == "prefill_done":
            kind = "near" if event["left"] else "done"
        if kind in ("near", "done", "kv_transfer"):
            rooms.setdefault(event["rid"], {})[kind.removeprefix("kv_")] = event
        if sum("transfer" in room for room in rooms.values()) == count:
            return


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
def test_a_worker_that_dies_then_loses_nothing(
    up: Running, reference: Reference, name: str
) -> None:
    calls.run(killed(up, reference, name))


async def killed(up: Running, reference: Reference, name: str) -> None:
    """Killed when a decode worker has been chosen for a prompt that still runs."""
    await settled(up)
    await calls.switch(up.router_url, decode="shortest_queue")  # so that both have some
    asked = prompts(f"killed-{name}", 6)
    before, early = await state(up.router_url), await chosen_early(up)
    bodies = [calls.greedy(ids, TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
    sending = asyncio.create_task(calls.all_of(up.router_url, bodies, len(asked)))

    async def chosen() -> bool:
        rows = {row["name"]: row for row in (await state(up.router_url))["workers"]}
        busy = name == "prefill-0" or rows[name]["inflight"] > 0
        return busy and await chosen_early(up) > early

    await calls.until(chosen, "a decode worker is chosen early")
    assert not sending.done()
    os.kill(victim(up, name, "scheduler"), signal.SIGKILL)
    answers = await sending
    assert [answer.error for answer in answers] == [""] * len(asked)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
    after = await state(up.router_url)
    saved = sum(after[counter] - before[counter] for counter in ("resumed", "retried"))
    assert saved > 0, "the kill hit no request: this run proved nothing"
    await settled(up)
    await measured(up)


BESIDE: dict[str, dict[str, Any]] = {
    "a draft, and stops between layers": {
        "speculative": "embedded",
        "prefill": RECIPE["prefill"] | {"preempt": "strict"},
        "router": RECIPE["router"] | {"classes": {}},
    },
    "DP ranks": {
        "prefill": RECIPE["prefill"]
        | {"tp": 2, "dp": 2, "dp_attention": True, "args": {"chunked-prefill-size": 2 * CHUNK}}
    },
}


@pytest.mark.parametrize("name", BESIDE)
def test_answers_are_the_models_beside_other_systems(
    reference: Reference, tmp_path: Path, name: str
) -> None:
    with deployed(RECIPE | BESIDE[name], tmp_path) as running:
        calls.run(measured(running))
        calls.run(measured(running))  # each DP rank
        calls.run(beside(running, reference, stops="classes" in BESIDE[name].get("router", {})))


async def beside(running: Running, reference: Reference, stops: bool) -> None:
    """Long best-effort prompts, and short latency-sensitive ones all the while."""
    url, before = running.router_url, await chosen_early(running)
    longs = prompts(f"beside-{stops}", size(change=4, whole=6))
    shorts = [calls.prompt(f"short-{stops}-{n}", 60 + n) for n in range(10)]

    async def hurry(http: Any) -> list[list[int]]:
        said = []
        for ids in shorts:
            await asyncio.sleep(0.5)
            said.append((await ask(http, url, ids, LS, 8))[0])
        return said

    async with calls.session() as http:
        asked = [ask(http, url, ids, BE, TOKENS) for ids in longs]
        long, short = await asyncio.gather(asyncio.gather(*asked), hurry(http))
    said = [answer[0] for answer in long]
    assert said == reference.greedy_each(longs, TOKENS, said)
    assert short == reference.greedy_each(shorts, 8, short)
    assert await chosen_early(running) - before == len(longs)
    gave_way = [v for k, v in (await metrics(url)).items() if "gave_way_total" in k]
    assert (sum(gave_way) > 0) == stops
