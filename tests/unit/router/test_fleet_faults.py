"""Faults of a fleet (docs/pages/faults.md), each by its name, against stand-in workers."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import (
    _whole,
    bodies,
    expected,
    idle,
    post,
    prompt_of,
    text_of,
)

pytestmark = pytest.mark.touched("router")

PATH = "/v1/completions"
PATHS = list(bodies(1))
MIXED = {"prefill_policy": "round_robin", "decode_policy": "random"}
TURNS = {"decode_policy": "round_robin"}


async def ask(cluster: Cluster, path: str = PATH, stream: bool = True, **extra: Any) -> None:
    """A request that is to be served as ever."""
    status, raw = await post(cluster, path, bodies(6, stream=stream, **extra)[path])
    assert status == 200, raw
    answer = text_of(path, raw) if stream else _text(json.loads(raw))
    assert answer == expected(prompt_of(path), 6)


def _text(answer: dict[str, Any]) -> str:
    return str(answer["text"]) if "text" in answer else _whole(answer)


async def metric(cluster: Cluster, line: str) -> float:
    """The value of a metric, by its name and labels; 0 where there is none."""
    async with cluster.session.get(f"{cluster.url}/metrics") as response:
        text = await response.text()
    found = [each for each in text.splitlines() if each.startswith(f"{line} ")]
    return float(found[0].split()[-1]) if found else 0.0


def row(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in state["workers"] if each["name"] == name)


# The same address with a new life.


async def test_a_worker_that_was_ejected_and_started_again_is_a_new_worker() -> None:
    async with Cluster(decodes=2, config=TURNS) as cluster:
        await cluster.make("decode-0", "500")
        for _ in range(12):
            await ask(cluster, stream=False)
        ejected = 'toolkit_router_ejected_total{worker="decode-0"}'
        assert await metric(cluster, ejected) == 1
        decode = cluster.worker("decode-0")
        decode.kill()
        await cluster.until(lambda state: not row(state, "decode-0")["healthy"])
        decode.start()
        await cluster.until(lambda state: row(state, "decode-0")["healthy"])
        for _ in range(4):  # it would be left alone for 5 s
            await ask(cluster, stream=False)
        assert (await cluster.stats("decode-0"))["served"] >= 1
        assert await metric(cluster, ejected) == 1


async def test_what_the_former_process_had_is_given_up_at_once() -> None:
    """Its connections may tell nothing for long, as those of a machine that is gone."""
    config = TURNS | {"first_token_timeout_s": 60, "idle_timeout_s": 60}
    async with Cluster(decodes=2, config=config) as cluster:
        await cluster.make("decode-0", "silent")
        calls = [asyncio.ensure_future(ask(cluster)) for _ in range(4)]
        await cluster.until(lambda state: row(state, "decode-0")["inflight"] == 2)
        await cluster.make("decode-0", "reborn")
        await cluster.until(lambda state: state["retried"] == 2, 30)
        await cluster.make("decode-0", "well")
        await asyncio.gather(*calls)
        await cluster.until(lambda state: idle(state) and row(state, "decode-0")["healthy"])
        assert "another process answers at its address" in cluster.log.read_text()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (["--page-size", "64"], "its KV means nothing to prefill-0: it has page_size 64"),
        (["--fingerprint", "sha256:2"], "it serves another model than prefill-0"),
    ],
)
async def test_a_worker_that_returns_with_other_kv_is_refused_and_that_is_said(
    other: list[str], why: str
) -> None:
    config = {"no_worker_wait_s": 0.1}
    async with Cluster(decodes=1, config=config) as cluster:
        decode = cluster.worker("decode-0")
        decode.kill()
        await cluster.until(lambda state: not row(state, "decode-0")["healthy"])
        decode.args = other
        decode.start()
        await cluster.until(lambda state: row(state, "decode-0").get("refused") is True)
        state = await cluster.until(lambda state: why in row(state, "decode-0").get("why", ""))
        assert not row(state, "decode-0")["healthy"]
        assert await metric(cluster, 'toolkit_router_worker_refused{worker="decode-0"}') == 1
        async with cluster.session.get(f"{cluster.url}/readiness") as response:
            assert response.status == 503
            assert "no decode worker: decode-0 (" in (said := await response.text())
            assert why in said
        status, _ = await post(cluster, PATH, bodies(4)[PATH])
        assert status == 503
        assert (await cluster.stats("decode-0"))["posts"] == 0
        decode.kill()
        decode.args = []
        decode.start()
        await cluster.until(lambda state: row(state, "decode-0")["healthy"])
        await ask(cluster)
        assert await metric(cluster, 'toolkit_router_worker_refused{worker="decode-0"}') == 0


# A pair that fails while both sides are well.


@pytest.mark.slow
async def test_a_pair_whose_transfers_fail_is_left_alone_and_both_workers_go_on() -> None:
    async with Cluster(prefills=2, decodes=2, config=MIXED) as cluster:
        port = cluster.worker("prefill-0").port
        await cluster.make("decode-0", f"no_kv {port}")

        def out(state: dict[str, Any]) -> bool:
            return [each["left_out"] for each in state["pairs"]] == [True]

        for _ in range(60):
            await ask(cluster)
            if out(state := await cluster.state()):
                break
        (pair,) = state["pairs"]
        assert (pair["prefill"], pair["decode"]) == ("prefill-0", "decode-0")
        labels = '{decode="decode-0",prefill="prefill-0"}'
        times = f"toolkit_router_pair_left_out_total{labels}"
        retried, before, left_out = state["retried"], await _posts(cluster), 1
        for _ in range(40):
            await ask(cluster)
        state, after = await cluster.state(), await _posts(cluster)
        probes = await metric(cluster, times) - left_out
        assert state["retried"] - retried == probes < 4, "nothing but probes fails"
        assert all(after[name] > before[name] + 4 for name in after), "all four go on"
        assert await metric(cluster, f"toolkit_router_pair_out{labels}") == 1
        for name in after:
            assert await metric(cluster, f'toolkit_router_ejected_total{{worker="{name}"}}') == 0
        assert "KV does not get from prefill-0 to decode-0" in cluster.log.read_text()
        await cluster.make("decode-0", "well")
        deadline = monotonic() + 30
        while (await cluster.state())["pairs"]:  # the next request that may go that way shows it
            assert monotonic() < deadline
            await ask(cluster)
        assert await metric(cluster, f"toolkit_router_pair_out{labels}") == 0


async def _posts(cluster: Cluster) -> dict[str, int]:
    return {each.name: (await cluster.stats(each.name))["posts"] for each in cluster.workers}


async def test_the_only_pair_is_used_whatever_is_known_of_it() -> None:
    async with Cluster(decodes=1, config={"max_retries": 1}) as cluster:
        await cluster.make("decode-0", f"no_kv {cluster.worker('prefill-0').port}")
        for _ in range(6):
            status, raw = await post(cluster, PATH, bodies(4)[PATH])
            assert (status, b"KVTransferError" in raw) == (500, True)
        await cluster.make("decode-0", "well")
        await ask(cluster)
        await cluster.until(idle)


# 200 with an error inside.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mode", ["inside", "inside 503", "abort"])
async def test_200_with_an_error_inside_is_a_failure_of_the_worker(mode: str, stream: bool) -> None:
    async with Cluster(decodes=2, config=TURNS) as cluster:
        await cluster.make("decode-0", mode)
        for path in PATHS * 4:
            await ask(cluster, path, stream)
        state = await cluster.until(idle)
        assert row(state, "decode-0")["completed"] == 0
        assert row(state, "decode-0")["failed"] > 0
        posts = (await cluster.stats("decode-0"))["posts"]
        assert posts <= 6, "soon it is left alone"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mode", ["inside", "abort"])
async def test_no_client_gets_200_with_an_error_inside_that_could_be_run_again(
    mode: str, stream: bool
) -> None:
    async with Cluster(decodes=1, config={"max_retries": 1}) as cluster:
        await cluster.make("decode-0", mode)
        for number, path in enumerate(PATHS, 1):
            status, raw = await post(cluster, path, bodies(4, stream=stream)[path])
            if (mode, path, stream) == ("abort", "/v1/chat/completions", True):  # it had begun
                assert (status, list(events_of(raw)[-1])) == (200, ["error"])
            else:
                assert status == (500 if mode == "inside" else 502), raw
            assert (await cluster.stats("decode-0"))["posts"] == 2 * number
        await cluster.until(idle)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    parts = [part for part in raw.split(b"\n\n") if part and part != b"data: [DONE]"]
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


async def test_a_client_s_own_error_inside_is_no_worker_s_failure() -> None:
    async with Cluster(decodes=1) as cluster:
        await cluster.make("decode-0", "inside 400")
        for path in PATHS * 2:
            status, raw = await post(cluster, path, bodies(4, stream=False)[path])
            assert (status, b"sick, as asked" in raw) == (400, True)
        assert (await cluster.stats("decode-0"))["posts"] == 6
        assert await metric(cluster, 'toolkit_router_ejected_total{worker="decode-0"}') == 0


@pytest.mark.parametrize("mode", ["inside", "abort"])
async def test_a_prefill_s_200_with_an_error_inside_is_run_again(mode: str) -> None:
    args = {"decode": ["--kv-ms", "100"]}
    config = {"prefill_policy": "round_robin"}
    async with Cluster(prefills=2, decodes=1, role_args=args, config=config) as cluster:
        await cluster.make("prefill-0", mode)
        for path in PATHS:
            await ask(cluster, path)
        assert (await cluster.stats("prefill-0"))["posts"] >= 1
        await cluster.until(idle)


# A required role that nobody serves.


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_role_without_a_worker_is_named_and_comes_back_at_once(role: str) -> None:
    async with Cluster(decodes=1, config={"no_worker_wait_s": 0.2}) as cluster:
        worker = cluster.worker(f"{role}-0")
        worker.kill()
        state = await cluster.until(lambda state: state["empty_roles"] == [role])
        assert not row(state, worker.name)["healthy"]
        async with cluster.session.get(f"{cluster.url}/readiness") as response:
            assert response.status == 503 and int(response.headers["Retry-After"]) >= 1
            assert (await response.text()).startswith(f"no {role} worker: {worker.name}")
        url = cluster.url + PATH
        async with cluster.session.post(url, json=bodies(4)[PATH]) as response:
            assert response.status == 503 and int(response.headers["Retry-After"]) >= 1
            assert f"No healthy {role} worker" in await response.text()
        label = f'{{role="{role}"}}'
        assert await metric(cluster, f"toolkit_router_role_empty{label}") == 1
        assert await metric(cluster, f"toolkit_router_unserved_total{label}") == 1
        call = asyncio.ensure_future(_until_served(cluster))
        worker.start()
        await call
        assert (await cluster.state())["empty_roles"] == []
        assert await metric(cluster, f"toolkit_router_role_empty{label}") == 0


async def _until_served(cluster: Cluster) -> None:
    """Ask again and again, as a client that is told when to."""
    deadline = monotonic() + 30
    while (await post(cluster, PATH, bodies(4)[PATH]))[0] != 200:
        assert monotonic() < deadline


async def test_a_role_whose_only_worker_is_held_is_said_to_be_empty() -> None:
    async with Cluster(decodes=2) as cluster:
        status, raw = await post(cluster, "/admin/drain", {"worker": "decode-0"}, admin=True)
        assert status == 200, raw
        cluster.worker("decode-1").kill()
        await cluster.until(lambda state: state["empty_roles"] == ["decode"])
        async with cluster.session.get(f"{cluster.url}/readiness") as response:
            assert response.status == 503
            said = await response.text()
        assert said.startswith("no decode worker: decode-0 (it gets no new requests), decode-1 (")


async def test_a_prefill_that_fails_ends_its_decode_at_once() -> None:
    """A decode that waits for KV waits for minutes."""
    args = {"decode": ["--kv-ms", "20000"]}
    async with Cluster(decodes=1, role_args=args, config={"max_retries": 0}) as cluster:
        begun = monotonic()
        status, _ = await post(cluster, PATH, bodies(4, lose_kv=True)[PATH])
        assert status == 500
        assert monotonic() - begun < 5
        await cluster.until_stats(lambda stats: len(stats["decode-0"]["aborted"]) == 1)
        await cluster.until(idle)
