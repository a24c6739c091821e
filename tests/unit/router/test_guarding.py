"""The router process against stand-in workers that are sick without being dead."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.standin.storm import Checked, Traffic
from tests.unit.router.cluster_calls import bodies, expected, idle, post, text_of

PATH = "/v1/completions"


PROBES = 3
"""How often a sick worker may be tried again in `then_s`, however few the others are posted."""


async def _beside_a_sick_decode(
    mode: str, warm_s: float, then_s: float, config: dict[str, float]
) -> tuple[Checked, list[int]]:
    """What came of requests, and the posts to each decode worker in the second while; the sick one
    is the second. (It first is well, and says what steps it does.)"""
    args = ["--token-ms", "2", "--steps"]
    async with Cluster(decodes=3, worker_args=args, config=config) as cluster:
        names = [f"decode-{number}" for number in range(3)]
        traffic = Traffic(cluster, 12, seed=5, limit_s=20.0)
        running = asyncio.create_task(traffic.run(None, 12, until_s=0.8 + warm_s + then_s))
        await asyncio.sleep(0.8)
        await cluster.make("decode-1", mode)
        await asyncio.sleep(warm_s)
        before = [(await cluster.stats(name))["posts"] for name in names]
        checked = await running
        posts = [(await cluster.stats(name))["posts"] for name in names]
        await cluster.until(idle)
    return checked, [after - first for after, first in zip(posts, before, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["500", "503", "429"])
async def test_a_decode_that_refuses_everything_gets_few_requests_and_fails_nobody(
    mode: str,
) -> None:
    checked, posts = await _beside_a_sick_decode(mode, 1.5, 1.5, {})
    assert checked.lost == checked.wrong == 0, checked.why
    assert checked.good > 50
    assert posts[1] <= max(PROBES, 0.05 * sum(posts)), posts


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["silent", "half"])
async def test_a_decode_that_is_silent_while_its_events_flow_is_given_up(mode: str) -> None:
    config = {"first_token_timeout_s": 0.7, "idle_timeout_s": 0.7, "request_timeout_s": 8.0}
    checked, posts = await _beside_a_sick_decode(mode, 2.5, 1.5, config)
    assert checked.lost == checked.wrong == 0, checked.why
    assert checked.good > 50
    assert posts[1] <= max(PROBES, 0.05 * sum(posts)), posts


@pytest.mark.parametrize("role", ["prefill", "decode", "plain"])
async def test_interim_answers_of_a_worker_are_not_its_answer(role: str) -> None:
    numbers = {"prefills": 0, "decodes": 0, "plains": 1} if role == "plain" else {"decodes": 1}
    config: dict[str, Any] = {"request_timeout_s": 3.0, "max_retries": 0}
    async with Cluster(config=config, **numbers) as cluster:  # type: ignore[arg-type]
        await cluster.make(f"{role}-0", "1xx")
        for _ in range(2):  # the second on the connection of the first
            for stream in (True, False):
                body = bodies(4, stream=stream)[PATH]
                status, raw = await post(cluster, PATH, body)
                assert status == 200, raw
                if stream:
                    assert text_of(PATH, raw) == expected("hello", 4)
                else:
                    assert expected("hello", 4).encode() in raw
        await cluster.until(idle)


@pytest.mark.slow
async def test_waiters_are_served_in_order_whatever_the_health_of_others_does() -> None:
    args = {"prefill": ["--prefill-ms", "250"]}
    config = {"parked_per_prefill": 1, "decode_policy": "label_oracle"}
    async with Cluster(role_args=args, config=config) as cluster:
        label = {"x-toolkit-label": "red"}  # always the same decode: the other one flaps
        await post(cluster, PATH, bodies(1)[PATH], headers=label)
        posts = [(await cluster.stats(f"decode-{number}"))["posts"] for number in (0, 1)]
        flapping = cluster.worker(f"decode-{posts.index(0)}")
        order: list[int] = []

        async def one(number: int) -> None:
            status, _ = await post(cluster, PATH, bodies(1)[PATH], headers=label)
            assert status == 200
            order.append(number)

        calls = []
        for number in range(11):  # one at the prefill and ten waiters
            calls.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0.02)
        for _ in range(5):
            flapping.kill()
            await cluster.until(lambda s: not all(w["healthy"] for w in s["workers"]))
            await asyncio.sleep(0.15)
            await asyncio.to_thread(flapping.start)
            await cluster.until(lambda s: all(w["healthy"] for w in s["workers"]))
        await asyncio.gather(*calls)
        assert order == sorted(order)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_s_nonsense_hurts_neither_the_router_nor_its_watch(role: str) -> None:
    """Frames and event lines that no worker should send; then the worker is well again."""
    config = {"rerun_wait_s": 1.0, "max_retries": 1, "request_timeout_s": 6.0}
    async with Cluster(decodes=1, config=config) as cluster:
        await cluster.make(f"{role}-0", "rude")

        async def ask() -> bytes:
            return (await post(cluster, PATH, bodies(3)[PATH]))[1]

        for _ in range(10):
            answers = await asyncio.gather(*(ask() for _ in range(6)))
            assert not any(b"Internal error" in raw for raw in answers)
            assert not any(b"took longer" in raw for raw in answers)
        await cluster.make(f"{role}-0", "well")
        for _ in range(50):
            raw = await ask()
            if b"[DONE]" in raw and b"error" not in raw:
                break
            await asyncio.sleep(0.1)
        assert text_of(PATH, raw) == expected("hello", 3)
        cluster.worker(f"{role}-0").kill()  # it is still watched
        await cluster.until(lambda s: not all(w["healthy"] for w in s["workers"]), 3.0)
        await cluster.until(idle)


async def test_out_of_descriptors_the_router_raises_its_limit_and_blames_nobody() -> None:
    config = {"max_retries": 0}
    async with Cluster(decodes=1, files=64, config=config) as cluster:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one() -> int:
                body = {**bodies(100)[PATH], "stream": True}
                async with session.post(cluster.url + PATH, json=body) as response:
                    await response.read()
                    return response.status

            statuses = await asyncio.gather(*(one() for _ in range(80)))
        assert set(statuses) == {200}, statuses
        assert all(worker["healthy"] for worker in (await cluster.state())["workers"])
