"""The router process against stand-in workers: limits, keys, plain workers, shutdown."""

import asyncio
import json
import signal

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import (
    PROMPT,
    bodies,
    expected,
    idle,
    post,
    prompt_of,
    text_of,
)

pytestmark = pytest.mark.touched("router")


async def test_kv_transfers_are_counted() -> None:
    async with Cluster(worker_args=["--transfer-ms", "5"]) as cluster:
        for _ in range(3):
            await post(cluster, "/v1/completions", bodies(2)["/v1/completions"])
        # The news of a transfer may come after the answer that needed it.
        for _ in range(200):
            async with cluster.session.get(cluster.url + "/metrics") as response:
                text = await response.text()
            if "toolkit_router_kv_transfer_bytes_total 3072.0" in text:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError(text)
        timing = (await cluster.state())["timing"]
        assert timing["transfer_ms"]["p50"] == 5.0
        assert len({part["p50"] for part in timing.values()}) > 2, timing


async def test_saturation_is_a_bounded_queue_then_429() -> None:
    config = {"max_inflight": 2, "max_queue": 2}
    async with Cluster(worker_args=["--token-ms", "20"], config=config) as cluster:
        path = "/v1/completions"
        calls = [asyncio.ensure_future(post(cluster, path, bodies(30)[path])) for _ in range(4)]
        await cluster.until(lambda s: s["running"] == 2 and s["queued"] == 2)
        async with cluster.session.post(cluster.url + path, json=bodies(30)[path]) as response:
            assert response.status == 429
            assert "Retry-After" in response.headers
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 4
        status, raw = await post(cluster, path, {**bodies(1)[path], "n": 5})
        assert status == 400
        assert b"at most 3" in raw  # batches get three quarters of the 4 places


async def test_parked_prefills_are_bounded_and_time_out() -> None:
    config = {"parked_per_prefill": 2, "park_timeout_s": 0.5}
    args = ["--prefill-ms", "100"]
    async with Cluster(decodes=1, worker_args=args, config=config) as cluster:
        path = "/v1/completions"
        calls = [asyncio.ensure_future(post(cluster, path, bodies(3)[path])) for _ in range(6)]
        await cluster.until(lambda s: s["parked"] == 2)
        assert (await cluster.stats("prefill-0"))["running"] <= 2
        cluster.worker("decode-0").kill()
        statuses = {status for status, _ in await asyncio.gather(*calls)}
        assert statuses <= {200, 503}
        assert 503 in statuses
        await cluster.until(idle)


@pytest.mark.slow
async def test_a_slow_client_does_not_fill_the_router_s_memory() -> None:
    import psutil

    async with Cluster() as cluster:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        before = process.memory_info().rss
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, limit=2**14)
        body = json.dumps(bodies(200_000)["/v1/chat/completions"]).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
            b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await reader.readexactly(1000)
        served = -1.0
        for _ in range(50):  # until the worker is held up too: it burns no more CPU time
            await asyncio.sleep(0.1)
            pids = [w.pid for w in cluster.workers if w.role == "decode"]
            now = sum(psutil.Process(pid).cpu_times().user for pid in pids)
            if now == served:
                break
            served = now
        grown = process.memory_info().rss - before
        assert grown < 20 * 2**20, f"{grown / 2**20:.0f} MiB of about 50"
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            raw = (raw + await reader.read(2**16))[-(2**16) :]
        assert b"[DONE]" in raw
        writer.close()
        await cluster.until(idle)


async def test_a_key_that_is_no_text_is_a_wrong_key() -> None:
    env = {"TEST_ROUTER_KEY": "secret-key"}
    async with Cluster(env=env, config={"api_key_env": "TEST_ROUTER_KEY"}) as cluster:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        head = b"POST /admin/drain HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n"
        writer.write(head + b"Authorization: Bearer \xff\xfe\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_api_key_and_admin() -> None:
    env = {"TEST_ROUTER_KEY": "secret-key"}
    config = {"api_key_env": "TEST_ROUTER_KEY"}
    async with Cluster(env=env, config=config) as cluster:
        path = "/v1/completions"
        assert (await post(cluster, path, bodies(2)[path]))[0] == 401
        assert (await post(cluster, "/admin/policy", {}))[0] == 401
        key = {"Authorization": "Bearer secret-key"}
        assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 200
        change = {"prefill": "prefix_affinity", "decode": "random", "dispatch": "concurrent"}
        status, _ = await post(cluster, "/admin/policy", change, admin=True)
        state = await cluster.state()
        assert status == 200
        assert state["policies"] == {"prefill": "prefix_affinity", "decode": "random"}
        assert state["dispatch"] == "concurrent"
        bad = {"decode": "prefix_affinity"}
        assert (await post(cluster, "/admin/policy", bad, admin=True))[0] == 400
        assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 200
        async with cluster.session.get(cluster.url + "/metrics") as response:
            metrics = await response.text()
        assert 'toolkit_router_requests_total{endpoint="completions",status="200"} 2.0' in metrics
        assert "toolkit_router_tokens_total 4.0" in metrics
        assert "secret-key" not in cluster.log.read_text()
        assert (await post(cluster, "/admin/drain", {}, admin=True))[0] == 200
        assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 503
        assert (await post(cluster, "/admin/drain", {"on": False}, admin=True))[0] == 200
        assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 200


async def test_plain_sglang_without_events() -> None:
    async with Cluster(worker_args=["--no-events"]) as cluster:
        path = "/v1/chat/completions"
        status, raw = await post(cluster, path, bodies(4)[path])
        assert status == 200
        assert text_of(path, raw) == expected(PROMPT, 4)


async def test_plain_workers_need_no_pd() -> None:
    async with Cluster(prefills=0, decodes=0, plains=2) as cluster:
        for path, body in bodies(4).items():
            status, raw = await post(cluster, path, body)
            assert status == 200
            assert text_of(path, raw) == expected(prompt_of(path), 4)


async def test_sigterm_lets_streams_finish() -> None:
    async with Cluster(worker_args=["--token-ms", "10"]) as cluster:
        assert cluster.router is not None
        path = "/v1/completions"
        call = asyncio.ensure_future(post(cluster, path, bodies(50)[path]))
        await cluster.until(lambda s: any(w["inflight"] for w in s["workers"][1:]))
        cluster.router.send_signal(signal.SIGTERM)
        status, raw = await call
        assert status == 200
        assert text_of(path, raw) == expected("hello", 50)
        assert await asyncio.to_thread(cluster.router.wait, 10) == 0
