"""One sick worker among others: requests go elsewhere, and soon none goes there any more."""

import asyncio
import json

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import _whole, bodies, expected, idle, post, text_of

PATH = "/v1/completions"
SHORT = {"first_token_timeout_s": 0.5, "idle_timeout_s": 0.5, "decode_policy": "round_robin"}


async def ask(cluster: Cluster, count: int, stream: bool) -> None:
    body = bodies(10, stream=stream)[PATH]
    for status, raw in await asyncio.gather(*(post(cluster, PATH, body) for _ in range(count))):
        assert status == 200, raw
        text = text_of(PATH, raw) if stream else _whole(json.loads(raw))
        assert text == expected("hello", 10)


# Others are in test_guarding.py; here it gets well again, too.
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "stream"), [("500", True), ("silent", False)])
async def test_no_client_sees_it_and_it_is_left_alone(mode: str, stream: bool) -> None:
    args = ["--steps", "--token-ms", "1"]
    async with Cluster(decodes=3, config=SHORT, worker_args=args) as cluster:
        await cluster.make("decode-1", mode)
        for _ in range(4):
            await ask(cluster, 6, stream)
        before = (await cluster.stats("decode-1"))["posts"]
        for _ in range(5):
            await ask(cluster, 8, stream)
        after = (await cluster.stats("decode-1"))["posts"]
        assert after - before <= 1
        await cluster.until(idle)
        await cluster.make("decode-1", "well")
        served = (await cluster.stats("decode-1"))["served"]
        for _ in range(100):
            await ask(cluster, 3, stream)
            if (await cluster.stats("decode-1"))["served"] > served:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError("it never came back")


async def test_when_all_are_full_the_client_is_told_when_to_come_again() -> None:
    async with Cluster(decodes=2) as cluster:
        for name in ("decode-0", "decode-1"):
            await cluster.make(name, "429")
        url = cluster.url + PATH
        async with cluster.session.post(url, json=bodies(4)[PATH]) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
        await cluster.until(idle)


async def test_those_who_wait_keep_their_order_while_health_changes() -> None:
    config = {"parked_per_prefill": 1, "prefill_policy": "round_robin"}
    args = ["--prefill-ms", "80", "--record"]
    async with Cluster(prefills=1, decodes=2, config=config, worker_args=args) as cluster:
        calls = []
        for number in range(10):
            body = bodies(2)[PATH] | {"prompt": f"p{number}"}
            calls.append(asyncio.ensure_future(post(cluster, PATH, body)))
            await asyncio.sleep(0.01)
        flapping = cluster.worker("decode-1")
        for _ in range(5):
            flapping.kill()
            await cluster.until(lambda s: not s["workers"][2]["healthy"])
            flapping.start()
            await cluster.until(lambda s: s["workers"][2]["healthy"])
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 10
        got = [body["prompt"] for body in (await cluster.stats("prefill-0"))["bodies"]]
        first = list(dict.fromkeys(got))
        assert first == [f"p{number}" for number in range(10)]


async def test_a_slow_reader_s_silence_is_its_own() -> None:
    async with Cluster(decodes=1, config=SHORT) as cluster:
        body = bodies(20000)[PATH]
        async with cluster.session.post(cluster.url + PATH, json=body) as response:
            await response.content.readany()
            await asyncio.sleep(2.5)  # the router stops reading from the worker
            raw = await response.content.read()
        assert raw.endswith(b"data: [DONE]\n\n")
        assert (await cluster.state())["resumed"] == 0
