"""The router process against stand-in workers: what happens when one of them fails."""

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import (
    PROMPT,
    _whole,
    bodies,
    expected,
    idle,
    post,
    prompt_of,
    text_of,
)

pytestmark = pytest.mark.touched("router")


@pytest.mark.parametrize("path", list(bodies(1)))
async def test_a_decode_killed_in_mid_stream_loses_and_doubles_nothing(path: Any) -> None:
    args = ["--token-ms", "2"]
    async with Cluster(worker_args=args, config={"rerun_wait_s": 20}) as cluster:
        quiet = [post(cluster, path, bodies(60)[path]) for _ in range(6)]
        crash = post(cluster, path, bodies(60, crash_after=20)[path])
        results = await asyncio.gather(crash, *quiet)
        for status, raw in results:
            assert status == 200
            assert text_of(path, raw) == expected(prompt_of(path), 60)
        state = await cluster.until(idle)
        assert state["resumed"] >= 1
        assert sum(not worker["healthy"] for worker in state["workers"]) == 1


async def test_requests_that_do_not_stream_run_again_when_their_decode_dies() -> None:
    async with Cluster(worker_args=["--token-ms", "2"]) as cluster:
        body = bodies(40, stream=False, crash_after=0)["/v1/chat/completions"]
        status, raw = await post(cluster, "/v1/chat/completions", body)
        assert status == 200
        assert _whole(json.loads(raw)) == expected(PROMPT, 40)
        assert (await cluster.state())["retried"] == 1


async def test_a_prefill_that_dies_has_its_requests_run_elsewhere() -> None:
    async with Cluster(prefills=2, worker_args=["--prefill-ms", "30"]) as cluster:
        path = "/v1/completions"
        calls = [post(cluster, path, bodies(10)[path]) for _ in range(8)]
        calls.append(post(cluster, path, bodies(10, crash_role="prefill")[path]))
        for status, raw in await asyncio.gather(*calls):
            assert status == 200
            assert text_of(path, raw) == expected("hello", 10)
        await cluster.until(idle)


async def test_a_worker_comes_back_on_its_port() -> None:
    async with Cluster(decodes=1) as cluster:
        decode = cluster.worker("decode-0")
        decode.kill()
        await cluster.until(lambda s: not s["workers"][1]["healthy"], 2.0)
        path = "/v1/completions"
        url = cluster.url + path
        async with cluster.session.post(url, json=bodies(4)[path]) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
        async with cluster.session.get(cluster.url + "/readiness") as response:
            assert response.status == 503
        decode.start()
        await cluster.until(lambda s: s["workers"][1]["healthy"])
        status, raw = await post(cluster, path, bodies(4)[path])
        assert status == 200
        assert text_of(path, raw) == expected("hello", 4)


async def test_a_worker_that_returns_with_another_model_is_kept_out() -> None:
    async with Cluster() as cluster:
        decode = cluster.worker("decode-1")
        decode.kill()
        await cluster.until(lambda s: not s["workers"][2]["healthy"], 2.0)
        decode.args = ["--fingerprint", "sha256:2"]
        decode.start()
        await cluster.until(lambda s: "another model" in cluster.log.read_text())
        path = "/v1/completions"
        for _ in range(4):
            status, raw = await post(cluster, path, bodies(4)[path])
            assert (status, text_of(path, raw)) == (200, expected("hello", 4))
        assert (await cluster.stats("decode-1"))["served"] == 0
        decode.kill()
        decode.args = []
        decode.start()
        await cluster.until(lambda s: s["workers"][2]["healthy"])


async def test_a_stream_waits_for_the_only_decode_to_come_back() -> None:
    async with Cluster(decodes=1, worker_args=["--token-ms", "2"]) as cluster:
        path = "/v1/chat/completions"
        call = asyncio.ensure_future(post(cluster, path, bodies(50, crash_after=10)[path]))
        await cluster.until(lambda s: not s["workers"][1]["healthy"])
        decode = cluster.worker("decode-0")
        decode.kill()
        decode.start()
        status, raw = await call
        assert status == 200
        assert text_of(path, raw) == expected(PROMPT, 50)


async def test_a_hung_decode_is_given_up() -> None:
    config = {"silent_s": 1.0, "hung_s": 1.5}
    async with Cluster(worker_args=["--token-ms", "5"], config=config) as cluster:
        path = "/v1/completions"
        calls = [asyncio.ensure_future(post(cluster, path, bodies(60)[path])) for _ in range(4)]
        busy = lambda s: all(w["inflight"] for w in s["workers"][1:])  # noqa: E731
        await cluster.until(busy)
        os.kill(cluster.worker("decode-0").pid, signal.SIGSTOP)
        for status, raw in await asyncio.gather(*calls):
            assert status == 200
            assert text_of(path, raw) == expected("hello", 60)


@pytest.mark.slow
async def test_a_decode_whose_http_is_held_up_keeps_its_requests_and_gets_no_new_ones() -> None:
    """Its events say so, from a thread of their own: it is not dead, however long it lasts."""
    config = {"silent_s": 0.4, "hung_s": 0.8, "no_worker_wait_s": 0.1}
    async with Cluster(decodes=1, worker_args=["--token-ms", "5"], config=config) as cluster:
        path = "/v1/completions"
        calls = [asyncio.ensure_future(post(cluster, path, bodies(60)[path])) for _ in range(4)]
        await cluster.until(lambda s: s["workers"][1]["inflight"] == 4)
        await cluster.make("decode-0", "hold 1.7")
        await cluster.until(lambda s: not s["workers"][1]["healthy"])
        status, raw = await post(cluster, path, bodies(5)[path])
        assert status == 503, raw
        for status, raw in await asyncio.gather(*calls):
            assert status == 200
            assert text_of(path, raw) == expected("hello", 60)
        state = await cluster.until(lambda s: s["workers"][1]["healthy"])
        assert state["resumed"] == state["retried"] == 0
        assert "HTTP has been held up" in cluster.log.read_text()
        # The same without a word of life is a hung worker, as ever.
        call = asyncio.ensure_future(post(cluster, path, bodies(60)[path]))
        await cluster.until(lambda s: s["workers"][1]["inflight"] == 1)
        await cluster.make("decode-0", "hold 1.7 mute")
        status, raw = await call
        assert status == 200
        state = await cluster.until(idle)
        assert state["resumed"] + state["retried"] == 1


async def test_a_client_that_goes_away_is_forgotten_everywhere() -> None:
    async with Cluster(worker_args=["--token-ms", "50"]) as cluster:
        path = "/v1/completions"
        url = cluster.url + path
        async with aiohttp.ClientSession() as session:
            response = await session.post(url, json={**bodies(500)[path], "rid": "gone"})
            await response.content.readany()
            response.close()
        await cluster.until(idle)
        await cluster.until_stats(
            lambda s: (
                any(s[f"decode-{n}"]["aborted"] for n in range(2))
                and not any(each["running"] for each in s.values())
            )
        )


async def test_abort_request_ends_a_stream() -> None:
    async with Cluster(worker_args=["--token-ms", "20"]) as cluster:
        path = "/v1/completions"
        body = {**bodies(2000)[path], "rid": "mine"}
        call = asyncio.ensure_future(post(cluster, path, body))
        await cluster.until(lambda s: any(w["inflight"] for w in s["workers"][1:]))
        await post(cluster, "/abort_request", {"rid": "mine"})
        await call
        await cluster.until(idle)


@pytest.mark.parametrize("stream", [True, False])
async def test_when_kv_does_not_get_across_another_decode_is_tried(stream: bool) -> None:
    """The prefill says that it failed, but it may be the decode that could not be reached."""
    args = ["--token-ms", "100", "--record"]
    config = {"decode_policy": "label_oracle", "max_retries": 1}
    async with Cluster(decodes=3, worker_args=args, config=config) as cluster:
        path = "/v1/completions"
        body = bodies(20, stream=stream, lose_kv=True)[path]
        headers = {"x-toolkit-label": "red"}  # always the same decode, if it may be
        status, raw = await post(cluster, path, body, headers=headers)
        assert (status, b"did not get across" in raw) == (500, True)
        asked = [len((await cluster.stats(f"decode-{n}"))["bodies"]) for n in range(3)]
        assert sorted(asked) == [0, 1, 1]
        # With nobody else left, whoever failed is tried again.
        assert len((await cluster.stats("prefill-0"))["bodies"]) == 2
        await cluster.until(idle)
