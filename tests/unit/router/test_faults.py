"""The router process against stand-in worker processes: faults, limits, merges."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.standin.worker import seed_of, token_id, word

PROMPT = [{"role": "user", "content": "hello"}]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def expected(prompt: Any, count: int) -> str:
    seed = seed_of(prompt)
    return "".join(word(seed, i) for i in range(count))


def bodies(tokens: int, stream: bool = True, **extra: Any) -> dict[str, dict[str, Any]]:
    return {
        "/v1/chat/completions": {
            "messages": PROMPT, "max_tokens": tokens, "stream": stream, **extra},
        "/v1/completions": {"prompt": "hello", "max_tokens": tokens, "stream": stream, **extra},
        "/generate": {
            "text": "hello", "sampling_params": {"max_new_tokens": tokens}, "stream": stream,
            **extra},
    }  # fmt: skip


async def post(cluster: Cluster, path: str, body: Any, **options: Any) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    async with cluster.session.post(cluster.url + path, data=data, headers=headers) as response:
        return response.status, await response.read()


def events(raw: bytes) -> list[Any]:
    """All events of a stream, which must end with [DONE]."""
    parts = [part for part in raw.split(b"\n\n") if part]
    assert parts[-1] == b"data: [DONE]", parts[-3:]
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts[:-1]]


def text_of(path: str, raw: bytes) -> str:
    got = events(raw)
    assert not any("error" in event for event in got), got[-1]
    if path == "/generate":
        counts = [event["meta_info"]["completion_tokens"] for event in got]
        assert counts == sorted(counts)
        assert len({event["meta_info"]["id"] for event in got}) == 1
        return got[-1]["text"]
    assert len({event["id"] for event in got}) == 1
    choices = [choice for event in got for choice in event["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    if path == "/v1/completions":
        return "".join(choice["text"] for choice in choices)
    assert sum(bool(choice["delta"].get("role")) for choice in choices) == 1
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def prompt_of(path: str) -> Any:
    return PROMPT if path == "/v1/chat/completions" else "hello"


@pytest.mark.parametrize("dispatch", ["late", "concurrent"])
def test_every_endpoint_streaming_and_not(dispatch):
    async def check() -> None:
        async with Cluster(config={"dispatch": dispatch}) as cluster:
            for path, body in bodies(8).items():
                status, raw = await post(cluster, path, body)
                assert status == 200
                assert text_of(path, raw) == expected(prompt_of(path), 8)
                status, raw = await post(cluster, path, {**body, "stream": False})
                answer = json.loads(raw)
                assert status == 200
                got = answer["text"] if path == "/generate" else _whole(answer)
                assert got == expected(prompt_of(path), 8)
            state = await cluster.until(idle)
            assert state["retried"] == 0

    run(check())


def _whole(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def idle(state: dict[str, Any]) -> bool:
    return state["running"] == state["queued"] == state["parked"] == 0 and all(
        w["inflight"] == w["inflight_tokens"] == 0 for w in state["workers"]
    )


def test_what_workers_are_sent():
    async def check() -> None:
        async with Cluster(worker_args=["--record"]) as cluster:
            body = {"messages": PROMPT, "max_tokens": 2, "stream": True, "odd_field": [1],
                    "stream_options": {"include_usage": True}}  # fmt: skip
            await post(cluster, "/v1/chat/completions", body)
            prefill = (await cluster.stats("prefill-0"))["bodies"][-1]
            decodes = [await cluster.stats(f"decode-{i}") for i in range(2)]
            decode = [b for stats in decodes for b in stats["bodies"]][-1]
            assert prefill["odd_field"] == decode["odd_field"] == [1]
            assert prefill["stream"] is False
            assert "stream_options" not in prefill
            assert decode["stream_options"] == {"include_usage": True}
            assert prefill["bootstrap_room"] == decode["bootstrap_room"]
            assert 0 < decode["bootstrap_room"] < 2**63
            assert prefill["rid"] == decode["rid"]

    run(check())


@pytest.mark.parametrize("path", list(bodies(1)))
def test_a_decode_killed_in_mid_stream_loses_and_doubles_nothing(path):
    async def check() -> None:
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

    run(check())


def test_requests_that_do_not_stream_run_again_when_their_decode_dies():
    async def check() -> None:
        async with Cluster(worker_args=["--token-ms", "2"]) as cluster:
            body = bodies(40, stream=False, crash_after=0)["/v1/chat/completions"]
            status, raw = await post(cluster, "/v1/chat/completions", body)
            assert status == 200
            assert _whole(json.loads(raw)) == expected(PROMPT, 40)
            assert (await cluster.state())["retried"] == 1

    run(check())


def test_a_prefill_that_dies_has_its_requests_run_elsewhere():
    async def check() -> None:
        async with Cluster(prefills=2, worker_args=["--prefill-ms", "30"]) as cluster:
            path = "/v1/completions"
            calls = [post(cluster, path, bodies(10)[path]) for _ in range(8)]
            calls.append(post(cluster, path, bodies(10, crash_role="prefill")[path]))
            for status, raw in await asyncio.gather(*calls):
                assert status == 200
                assert text_of(path, raw) == expected("hello", 10)
            await cluster.until(idle)

    run(check())


def test_a_worker_comes_back_on_its_port():
    async def check() -> None:
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

    run(check())


def test_a_worker_that_returns_with_another_model_is_kept_out():
    async def check() -> None:
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

    run(check())


def test_kv_transfers_are_counted():
    async def check() -> None:
        async with Cluster(worker_args=["--transfer-ms", "5"]) as cluster:
            for _ in range(3):
                await post(cluster, "/v1/completions", bodies(2)["/v1/completions"])
            state = await cluster.until(lambda s: "transfer_ms" in s["timing"])
            assert state["timing"]["transfer_ms"]["p50"] == 5.0
            async with cluster.session.get(cluster.url + "/metrics") as response:
                text = await response.text()
            assert "toolkit_router_kv_transfer_bytes_total 3072.0" in text

    run(check())


def test_a_stream_waits_for_the_only_decode_to_come_back():
    async def check() -> None:
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

    run(check())


def test_a_hung_decode_is_given_up():
    async def check() -> None:
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

    run(check())


def test_a_client_that_goes_away_is_forgotten_everywhere():
    async def check() -> None:
        async with Cluster(worker_args=["--token-ms", "50"]) as cluster:
            path = "/v1/completions"
            url = cluster.url + path
            async with aiohttp.ClientSession() as session:
                response = await session.post(url, json={**bodies(500)[path], "rid": "gone"})
                await response.content.readany()
                response.close()
            await cluster.until(idle)
            for _ in range(500):
                stats = [await cluster.stats(w.name) for w in cluster.workers]
                if any("gone" in each["aborted"] for each in stats[1:]):
                    break
                await asyncio.sleep(0.01)
            assert any("gone" in each["aborted"] for each in stats[1:])
            assert not any(each["running"] for each in stats)

    run(check())


def test_abort_request_ends_a_stream():
    async def check() -> None:
        async with Cluster(worker_args=["--token-ms", "20"]) as cluster:
            path = "/v1/completions"
            body = {**bodies(2000)[path], "rid": "mine"}
            call = asyncio.ensure_future(post(cluster, path, body))
            await cluster.until(lambda s: any(w["inflight"] for w in s["workers"][1:]))
            await post(cluster, "/abort_request", {"rid": "mine"})
            await call
            await cluster.until(idle)

    run(check())


def test_saturation_is_a_bounded_queue_then_429():
    async def check() -> None:
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
            assert b"at most 4" in raw

    run(check())


def test_parked_prefills_are_bounded_and_time_out():
    async def check() -> None:
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

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_n_and_batches_are_split_and_merged(stream):
    async def check() -> None:
        async with Cluster(worker_args=["--record"]) as cluster:
            body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 5, "stream": stream,
                    "stream_options": {"include_usage": True} if stream else None}  # fmt: skip
            status, raw = await post(cluster, "/v1/completions", body)
            assert status == 200
            want = [expected(p, 5) for p in ("a", "a", "b", "b")]
            if stream:
                got = events(raw)
                assert len({event["id"] for event in got}) == 1
                choices = [choice for event in got for choice in event["choices"]]
                texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(4)]
                usages = [event["usage"] for event in got if event.get("usage")]
                assert len(usages) == 1
                usage = usages[0]
            else:
                answer = json.loads(raw)
                texts = [choice["text"] for choice in answer["choices"]]
                assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
                usage = answer["usage"]
            assert texts == want
            assert usage["prompt_tokens"] == 2
            assert usage["completion_tokens"] == 20
            assert usage["total_tokens"] == 22
            sent = (await cluster.stats("prefill-0"))["bodies"]
            assert len({each["bootstrap_room"] for each in sent}) == 4
            assert all(each["n"] == 1 and isinstance(each["prompt"], str) for each in sent)

    run(check())


def test_generate_batches_return_lists():
    async def check() -> None:
        async with Cluster() as cluster:
            body = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 3}}
            _, raw = await post(cluster, "/generate", body)
            assert [each["text"] for each in json.loads(raw)] == [expected(p, 3) for p in "ab"]
            _, raw = await post(cluster, "/generate", {**body, "stream": True})
            last = {event["index"]: event["text"] for event in events(raw)}
            assert last == {0: expected("a", 3), 1: expected("b", 3)}

    run(check())


@pytest.mark.parametrize("stream", [True, False])
def test_prompt_logprobs_come_from_the_prefill(stream):
    async def check() -> None:
        async with Cluster(worker_args=["--transfer-ms", "30"]) as cluster:
            body = {"text": "hello", "return_logprob": True, "logprob_start_len": 0,
                    "sampling_params": {"max_new_tokens": 3}, "stream": stream}  # fmt: skip
            _, raw = await post(cluster, "/generate", body)
            answers = events(raw) if stream else [json.loads(raw)]
            for answer in answers:
                assert answer["meta_info"]["input_token_logprobs"] == [[-0.5, 1, None]]
            body = {"prompt": "hello", "max_tokens": 3, "echo": True, "logprobs": 1,
                    "stream": stream}  # fmt: skip
            _, raw = await post(cluster, "/v1/completions", body)
            answers = events(raw) if stream else [json.loads(raw)]
            parts = [each["choices"][0]["logprobs"] for each in answers]
            tokens = [t for part in parts if part for t in part["tokens"]]
            seed = seed_of("hello")
            assert tokens == ["p", *(word(seed, i) for i in range(3))]

    run(check())


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{not json", 400, b"JSON decode error"),
        ("/generate", b"[1, 2]", 400, b"valid dictionary"),
        ("/v1/completions", b'{"prompt": "a", "n": 0}', 400, b"at least 1"),
        ("/v1/completions", b'{"prompt": "a", "best_of": 3}', 400, b"best_of"),
        ("/v1/completions", b'{"prompt": "a", "fail_status": 422}', 422, b"as asked"),
        ("/v1/completions", b'{"prompt": "a", "fail_status": 500}', 500, b"as asked"),
    ],
)
def test_bad_requests_get_an_answer(path, body, status, words):
    async def check() -> None:
        async with Cluster(config={"max_retries": 1}) as cluster:
            got, raw = await post(cluster, path, body)
            assert got == status
            assert words in raw
            json.loads(raw)
            await cluster.until(idle)

    run(check())


def test_a_slow_client_does_not_fill_the_router_s_memory():
    import psutil

    async def check() -> None:
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

    run(check())


def test_api_key_and_admin():
    async def check() -> None:
        env = {"TEST_ROUTER_KEY": "secret-key"}
        config = {"api_key_env": "TEST_ROUTER_KEY"}
        async with Cluster(env=env, config=config) as cluster:
            path = "/v1/completions"
            assert (await post(cluster, path, bodies(2)[path]))[0] == 401
            assert (await post(cluster, "/admin/policy", {}))[0] == 401
            key = {"Authorization": "Bearer secret-key"}
            assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 200
            change = {"prefill": "prefix_affinity", "decode": "random", "dispatch": "concurrent"}
            status, _ = await post(cluster, "/admin/policy", change, headers=key)
            state = await cluster.state()
            assert status == 200
            assert state["policies"] == {"prefill": "prefix_affinity", "decode": "random"}
            assert state["dispatch"] == "concurrent"
            bad = {"decode": "prefix_affinity"}
            assert (await post(cluster, "/admin/policy", bad, headers=key))[0] == 400
            assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 200
            async with cluster.session.get(cluster.url + "/metrics") as response:
                metrics = await response.text()
            assert (
                'toolkit_router_requests_total{endpoint="completions",status="200"} 2.0' in metrics
            )
            assert "toolkit_router_tokens_total 4.0" in metrics
            assert "secret-key" not in cluster.log.read_text()
            assert (await post(cluster, "/admin/drain", {}, headers=key))[0] == 200
            assert (await post(cluster, path, bodies(2)[path], headers=key))[0] == 503

    run(check())


def test_plain_sglang_without_events():
    async def check() -> None:
        async with Cluster(worker_args=["--no-events"]) as cluster:
            path = "/v1/chat/completions"
            status, raw = await post(cluster, path, bodies(4)[path])
            assert status == 200
            assert text_of(path, raw) == expected(PROMPT, 4)

    run(check())


def test_plain_workers_need_no_pd():
    async def check() -> None:
        async with Cluster(prefills=0, decodes=0, plains=2) as cluster:
            for path, body in bodies(4).items():
                status, raw = await post(cluster, path, body)
                assert status == 200
                assert text_of(path, raw) == expected(prompt_of(path), 4)

    run(check())


def test_sigterm_lets_streams_finish():
    async def check() -> None:
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

    run(check())


def test_ids_never_reach_the_client():
    async def check() -> None:
        async with Cluster() as cluster:
            path = "/v1/completions"
            _, raw = await post(cluster, path, bodies(30)[path])
            assert b": %d\n" % token_id(seed_of("hello"), 0) not in raw

    run(check())
