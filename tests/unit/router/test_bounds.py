"""The router process against clients that want too much: bounds come before work."""

import asyncio
import gzip
import json
import time
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, run, text_of
from tests.unit.router.raw import PATH, Raw
from toolkit.router import views
from toolkit.router.app import RouterApp
from toolkit.router.budget import LARGE_PER_S, Budget
from toolkit.settings.router.config import RouterConfig

MIB = 2**20


async def test_a_request_that_cannot_come_in_is_answered_before_its_body() -> None:
    config = {"max_inflight": 1, "max_queue": 0, "max_body_mib": 2}
    async with Cluster(worker_args=["--token-ms", "20"], config=config) as cluster:
        async with Raw(cluster.port) as client:  # announces more than is taken
            await client.head(3 * MIB)
            status, headers, raw = await client.answer(1.0)
            assert (status, headers["connection"]) == (413, "close")
            assert b"2 MiB" in raw
        running = asyncio.ensure_future(post(cluster, PATH, bodies(500)[PATH]))
        await cluster.until(lambda s: s["running"] == 1)
        async with Raw(cluster.port) as client:
            await client.head(MIB, "Expect: 100-continue")
            status, headers, _ = await client.answer(1.0)
            assert (status, headers["retry-after"]) == (429, "1")
        running.cancel()
        await cluster.until(idle)
        async with Raw(cluster.port) as client:
            body = json.dumps(bodies(2, stream=False)[PATH]).encode()
            await client.head(len(body), "Expect: 100-continue")
            assert (await client.answer(1.0))[0] == 100
            await client.send(body)
            assert (await client.answer())[0] == 200
            await client.head(len(body), "Expect: something-else")
            assert (await client.answer())[0] == 417
        await post(cluster, "/admin/drain", {}, admin=True)
        async with Raw(cluster.port) as client:
            await client.head(MIB)
            status, headers, _ = await client.answer(1.0)
            assert (status, headers["retry-after"]) == (503, "5")


@pytest.mark.slow
async def test_unfinished_bodies_are_bounded_in_all_and_leave_room_for_small_ones() -> None:
    config = {"max_body_mib": 8, "max_body_total_mib": 24}
    async with Cluster(config=config) as cluster, AsyncExitStack() as stack:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        before = process.memory_info().rss
        clients = [await stack.enter_async_context(Raw(cluster.port)) for _ in range(10)]
        part = b'{"prompt": "' + b"x" * (6 * MIB)

        async def most(client: Raw) -> int:
            await client.head(7 * MIB)
            try:
                await client.send(part)
                return (await client.answer(2.0))[0]
            except TimeoutError:  # the router waits for the rest
                return 0
            except ConnectionError:
                return 503

        statuses = await asyncio.gather(*(most(client) for client in clients))
        assert set(statuses) == {0, 503}
        assert 2 <= statuses.count(0) <= 3
        held = (await cluster.state())["held_bytes"]
        assert 12 * MIB <= held <= 18 * MIB
        assert process.memory_info().rss - before < 60 * MIB
        status, raw = await post(cluster, PATH, bodies(4)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
        for client in clients:
            client.writer.close()
        await cluster.until(lambda s: s["held_bytes"] == 0 and idle(s))


@pytest.mark.slow
async def test_what_is_still_to_come_of_a_refused_body_is_not_read_at_full_speed() -> None:
    async with Cluster(config={"max_body_mib": 2}) as cluster, Raw(cluster.port) as client:
        await client.head(2000 * MIB)
        assert (await client.answer(2.0))[0] == 413
        sent, begin = 0, time.monotonic()
        try:
            while time.monotonic() < begin + 1.0:
                async with asyncio.timeout(1.0):
                    await client.send(b"x" * MIB)
                sent += 1
        except (TimeoutError, ConnectionError):
            pass
        assert sent < 60, "a few MiB are read, and some lie in the buffers of two sockets"
        assert await client.closed()


def test_large_bodies_are_read_at_a_bounded_pace_together() -> None:
    budget, now = Budget(1000 * MIB), 100.0
    with budget.open() as small, budget.open() as one, budget.open() as other:
        small.grow(MIB)
        assert small.pause_s(MIB, now) == 0
        one.grow(2 * MIB)
        other.grow(2 * MIB)
        waits = [each.pause_s(LARGE_PER_S // 4, now) for each in (one, other, one, other)]
        assert waits == pytest.approx([0.25, 0.5, 0.75, 1.0])
        assert other.pause_s(LARGE_PER_S // 4, now + 60) == pytest.approx(0.25), "nothing saved up"


async def test_heads_and_bodies_must_keep_a_pace() -> None:
    config = {
        "head_timeout_s": 0.6, "keepalive_s": 5.0, "body_window_s": 0.5, "body_pace_kib": 4,
        "body_timeout_s": 2.0,
    }  # fmt: skip
    async with Cluster(config=config) as cluster:

        async def silent() -> None:
            async with Raw(cluster.port) as client:
                assert (await client.answer())[0] == 0

        async def slow_head() -> None:
            async with Raw(cluster.port) as client:
                await client.send(b"POST /generate HTTP/1.1\r\nHost: h\r\nX-A: ")
                assert (await client.answer())[0] == 408

        async def slow_second_head() -> None:
            async with Raw(cluster.port) as client:
                await client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                assert (await client.answer())[0] == 200
                await asyncio.sleep(0.8)  # idle is not late
                await client.send(b"GET /health HT")
                assert (await client.answer())[0] == 408

        async def dripping(path: str) -> None:
            async with Raw(cluster.port) as client:
                await client.head(50_000, path=path)
                drip = asyncio.ensure_future(_drip(client, 1))
                status, _, answer = await client.answer()
                assert status == 408 and b"slower than 4 KiB/s" in answer
                drip.cancel()

        async def never_done() -> None:
            async with Raw(cluster.port) as client:
                await client.head(MIB)
                drip = asyncio.ensure_future(_drip(client, 1024))
                assert (await client.answer())[0] == 408
                drip.cancel()

        async def idle_for_long() -> None:
            async with Raw(cluster.port) as client:
                await client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                assert (await client.answer())[0] == 200
                assert await client.closed(20)

        await asyncio.gather(
            silent(), slow_head(), slow_second_head(), dripping(PATH),
            dripping("/abort_request"), never_done(), idle_for_long(),
        )  # fmt: skip
        await cluster.until(lambda s: s["held_bytes"] == 0)


async def _drip(client: Raw, size: int) -> None:
    while True:
        await client.send(b" " * size)
        await asyncio.sleep(0.05)


@pytest.mark.slow
def test_connections_are_bounded_and_idle_ones_make_room() -> None:
    async def check() -> None:
        config = {"max_connections": 8}
        async with Cluster(worker_args=["--token-ms", "50"], config=config) as cluster:
            async with AsyncExitStack() as stack:
                for _ in range(8):
                    await stack.enter_async_context(Raw(cluster.port))
                await asyncio.sleep(1.2)
                status, _ = await post(cluster, PATH, bodies(2)[PATH])
                assert status == 200  # the silent ones had to go
            await asyncio.sleep(1.2)  # now those of this test's own session may go, too
            async with AsyncExitStack() as stack:
                for _ in range(8):
                    client = await stack.enter_async_context(Raw(cluster.port))
                    body = json.dumps(bodies(200)[PATH]).encode()
                    await client.head(len(body))
                    await client.send(body)
                    status = int((await client.reader.readline()).split()[1])
                    assert status == 200
                await asyncio.sleep(1.2)
                async with Raw(cluster.port) as client:
                    status, headers, _ = await client.answer()
                    assert (status, headers["retry-after"]) == (503, "1")
            assert "too many" in cluster.log.read_text()
            for _ in range(100):  # the streams' places are free again
                async with Raw(cluster.port) as client:
                    await client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                    if (await client.answer())[0] == 200:
                        return
                await asyncio.sleep(0.05)
            raise AssertionError("still full")

    run(check())


SECRET = b"sk-very-secret"
MALFORMED = [
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + SECRET
    + b"\x01\r\nContent-Length: 0\r\n\r\n",
    b"GET http://[" + SECRET + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST //[" + SECRET + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz"
    + SECRET + b"\r\n",
    b"NOT HTTP " + SECRET + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 70_000 + SECRET + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 200 + SECRET + b"\r\n\r\n",
]  # fmt: skip


@pytest.mark.slow
async def test_what_is_not_http_gets_400_and_leaves_nothing_in_the_log() -> None:
    env = {"TEST_ROUTER_KEY": "secret-key"}
    config = {"api_key_env": "TEST_ROUTER_KEY"}
    async with Cluster(env=env, config=config) as cluster:
        for data in MALFORMED:
            async with Raw(cluster.port) as client:
                await client.send(data)
                status, _, raw = await client.answer()
                assert status in (400, 401), data[:60]
                assert SECRET not in raw
        key = "Authorization: Bearer secret-key"
        for pause_s in (0.0, 0.001, 0.2):  # a bad chunk behind the right key
            async with Raw(cluster.port) as client:
                await client.head(None, key, "Transfer-Encoding: chunked")
                await asyncio.sleep(pause_s)
                await client.send(b'5\r\n{"pro\r\nzz' + SECRET + b"\r\n")
                assert (await client.answer())[0] == 400
        for coding, wanted in (("gzip, chunked", 501), ("x, chunked", 501)):
            async with Raw(cluster.port) as client:
                await client.head(None, key, f"Transfer-Encoding: {coding}")
                await client.send(b"0\r\n\r\n")
                assert (await client.answer())[0] == wanted
        headers = {"Authorization": "Bearer secret-key", "Content-Encoding": "gzip"}
        for data in (gzip.compress(json.dumps(bodies(2)[PATH]).encode()), SECRET):
            status, raw = await post(cluster, PATH, data, headers=headers)
            assert status == 415
            assert b"send the body as it is" in raw
        log = cluster.log.read_text()
        assert "Traceback" not in log and "connection failed" not in log
        assert SECRET.decode() not in log and "secret-key" not in log
        assert "not HTTP" in log


@pytest.mark.slow
async def test_gzip_is_taken_where_asked_for_within_the_bound_of_what_comes_out() -> None:
    config = {"accept_gzip": True, "max_body_mib": 4}
    async with Cluster(config=config) as cluster:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        headers = {"Content-Encoding": "gzip"}
        whole = gzip.compress(json.dumps(bodies(4)[PATH]).encode())
        status, raw = await post(cluster, PATH, whole, headers=headers)
        assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
        before = process.memory_info().rss
        bomb = gzip.compress(b'{"prompt": "' + b"x" * (200 * MIB))
        assert (await post(cluster, PATH, bomb, headers=headers))[0] == 413
        assert process.memory_info().rss - before < 30 * MIB
        for data in (b"no gzip", whole[:-9], whole + b"more"):
            status, raw = await post(cluster, PATH, data, headers=headers)
            assert (status, b"gzip" in raw) == (400, True)
        assert "Traceback" not in cluster.log.read_text()
        assert (await cluster.state())["held_bytes"] == 0


@pytest.mark.parametrize("levels", [990, 100_000])
async def test_json_that_is_nested_too_deep_is_the_client_s_mistake(levels: int) -> None:
    async with Cluster() as cluster:
        for path, body in bodies(2).items():
            deep = json.dumps(body)[:-1] + ', "user": ' + "[" * levels + "]" * levels + "}"
            status, raw = await post(cluster, path, deep.encode())
            assert (status, b"rror" in raw) == (400, True), raw
            fine = json.dumps(body)[:-1] + ', "my_own": ' + "[" * 150 + "]" * 150 + "}"
            status, raw = await post(cluster, path, fine.encode())
            assert status == 200, raw


@pytest.mark.slow
async def test_a_large_body_does_not_hold_up_the_others() -> None:
    async with Cluster() as cluster:
        assert cluster.router is not None
        await post(cluster, PATH, bodies(2)[PATH])
        process = psutil.Process(cluster.router.pid)
        dense = b'{"prompt": "hello", "max_tokens": 2, "x": [' + b"[]," * (4 * MIB) + b"[]]}"
        text = json.dumps({"prompt": "é" * (8 * MIB), "max_tokens": 2}).encode()
        before = process.cpu_times().user
        large = [post(cluster, PATH, each) for each in (dense, text)]
        statuses = [status for status, _ in await asyncio.gather(*large)]
        # Time of the process whose loop serves everybody; wall clocks tell of the machine.
        busy = process.cpu_times().user - before
        assert statuses == [413, 200], "the first has more than 4 million values"
        assert busy < 0.8, f"{busy:.1f} s of 5 or more"
        await cluster.until(lambda s: s["held_bytes"] == 0 and idle(s))


@pytest.mark.slow
async def test_samples_of_a_long_prompt_share_it() -> None:
    args = ["--prefill-ms", "2000"]
    async with Cluster(worker_args=args, config={"parked_per_prefill": 100}) as cluster:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        before = process.memory_info().rss
        body = {"prompt": "x" * MIB, "n": 100, "max_tokens": 2, "stream": True}
        call = asyncio.ensure_future(post(cluster, PATH, body))
        await cluster.until(lambda s: s["workers"][0]["inflight"] == 100)
        grown = process.memory_info().rss - before
        assert grown < 40 * MIB, f"{grown / MIB:.0f} MiB of more than 100"
        status, raw = await call
        assert status == 200
        assert raw.count(b'"finish_reason":"length"') == 100
        await cluster.until(lambda s: s["held_bytes"] == 0 and idle(s))


@pytest.mark.slow
async def test_a_batch_as_large_as_the_bound_leaves_single_requests_alone() -> None:
    config = {"max_inflight": 48, "max_queue": 48, "parked_per_prefill": 48}
    async with Cluster(worker_args=["--token-ms", "20"], config=config) as cluster:
        body = {"prompt": ["hello"] * 48, "max_tokens": 100, "stream": True}
        batch = asyncio.ensure_future(post(cluster, PATH, body))
        await cluster.until(lambda s: s["running"] >= 36)
        status, raw = await post(cluster, PATH, bodies(2)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected("hello", 2))
        done = [w["completed"] for w in (await cluster.state())["workers"]]
        assert not batch.done() and sum(done[1:]) == 1, "none of the batch has ended yet"
        assert (await batch)[0] == 200
        await cluster.until(idle)


async def test_batches_that_come_at_once_do_not_overshoot() -> None:
    config = {"max_inflight": 4, "max_queue": 4}
    async with Cluster(worker_args=["--token-ms", "20"], config=config) as cluster:
        body = {"prompt": ["hello"] * 3, "max_tokens": 20, "stream": False}
        calls = [asyncio.ensure_future(post(cluster, PATH, body)) for _ in range(12)]
        most = 0
        while not all(call.done() for call in calls):
            state = await cluster.state()
            most = max(most, state["running"] + state["queued"])
        statuses = [(await call)[0] for call in calls]
        assert most <= 8
        assert set(statuses) == {200, 429}


async def test_orders_are_small() -> None:
    async with Cluster() as cluster:
        order = json.dumps({"rid": "nobody", "x": "y" * 70_000}).encode()
        status, raw = await post(cluster, "/abort_request", order)
        assert (status, b"0.0625 MiB" in raw) == (413, True)
        assert (await post(cluster, "/abort_request", {"rid": "nobody"}))[0] == 200


async def test_metrics_take_a_share_of_the_loop_however_often_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real page of a router that serves nobody."""
    worker = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    router = RouterApp(RouterConfig.model_validate({"workers": [worker]}))
    view = views.MetricsPage(router.control)
    monkeypatch.setattr(views, "METRICS_SHARE", 1e-9)
    first = await view.metrics(None)  # type: ignore[arg-type]
    router.metrics.disconnects.inc(41)
    assert (await view.metrics(None)).body is first.body, "it took its share for long"  # type: ignore[arg-type]
    view._until = 0.0
    monkeypatch.setattr(views, "METRICS_SHARE", 1e9)
    assert b"41.0" in (await view.metrics(None)).body  # type: ignore[arg-type, operator]
    router.metrics.disconnects.inc()
    assert b"42.0" in (await view.metrics(None)).body  # type: ignore[arg-type, operator]
