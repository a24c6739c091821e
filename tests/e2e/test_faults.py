"""Faults under load on real workers: a killed worker loses no request and changes no token."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.workers import events, settled, state, victim
from tests.ports import free_port
from tests.sizes import size
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

REQUESTS = size(change=110, whole=200)
TOKENS = 24
CONCURRENCY = 8


def bodies() -> list[dict[str, Any]]:
    """Streaming requests of 10 to 90 tokens, a quarter of them with a long prefix."""
    shared = calls.prompt("fault-prefix", 60)
    prompts = [
        (shared if n % 4 == 0 else []) + calls.prompt(f"fault-{n}", 10 + n % 30)
        for n in range(REQUESTS)
    ]
    return [calls.greedy(ids, TOKENS, stream=True) for ids in prompts]


@pytest.fixture(scope="module")
def undisturbed(deployment: Running) -> list[list[int]]:
    """What the requests give when nobody is killed."""
    answers = calls.run(calls.all_of(deployment.router_url, bodies(), CONCURRENCY))
    assert [answer.error for answer in answers] == [""] * REQUESTS
    return [answer.ids for answer in answers]


class Streams:
    """How far the clients' streams are."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}

    def __call__(self, index: int, count: int) -> None:
        self.tokens[index] = count

    async def stuck(self) -> bool:
        """Whether a stream in its middle stands still while others go on."""
        await asyncio.sleep(0.2)  # what was on its way has come
        before = dict(self.tokens)
        await asyncio.sleep(0.3)
        return any(
            count < TOKENS and self.tokens[index] == count for index, count in before.items()
        )


async def kill_under_load(deployment: Running, name: str, pid: int) -> list[calls.Answer]:
    """Send all requests; SIGKILL once a third is done and the victim has work in its hands.

    A decode worker is stopped first, until it is seen that the kill will cut a stream: its reports
    are too old to tell.
    """
    url = deployment.router_url
    streams = Streams()
    sending = asyncio.create_task(calls.all_of(url, bodies(), CONCURRENCY, streams))
    start = {row["name"]: row["completed"] for row in (await state(url))["workers"]}
    while True:
        rows = {row["name"]: row for row in (await state(url))["workers"]}
        done = sum(row["completed"] - start[other] for other, row in rows.items())
        if done > REQUESTS / 3 and rows[name]["inflight"] >= 2:
            if rows[name]["role"] == "prefill":
                break
            os.kill(pid, signal.SIGSTOP)
            if await streams.stuck():
                break
            os.kill(pid, signal.SIGCONT)
        assert not sending.done(), "the load ended before the kill"
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return await sending


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("decode-0", "server"),
        # A scheduler is killed for a change in test_launch_deployment.py.
        pytest.param("decode-1", "scheduler", marks=pytest.mark.full),
        ("prefill-0", "server"),
    ],
)
def test_a_killed_worker_loses_nothing_and_comes_back(
    deployment: Running, undisturbed: list[list[int]], name: str, process: str
) -> None:
    calls.run(settled(deployment))
    before = calls.run(state(deployment.router_url))
    restarts = deployment.worker(name).restarts
    pid = victim(deployment, name, process)

    answers = calls.run(kill_under_load(deployment, name, pid))

    assert [answer.error for answer in answers if answer.error] == []
    wrong = [n for n, answer in enumerate(answers) if answer.ids != undisturbed[n]]
    assert wrong == []
    after = calls.run(state(deployment.router_url))
    saved = sum(after[counter] - before[counter] for counter in ("resumed", "retried"))
    assert saved > 0, "the kill hit no request: this run proved nothing"
    if name.startswith("decode"):
        assert after["resumed"] > before["resumed"], "no stream was cut in the middle"
    calls.run(settled(deployment))
    assert deployment.worker(name).restarts == restarts + 1
    assert deployment.worker(name).pid != pid


def test_workers_go_on_when_what_they_were_forked_from_is_killed(
    deployment: Running, undisturbed: list[list[int]]
) -> None:
    calls.run(settled(deployment))
    first, before = deployment.preloaded_pid, {w.name: w.pid for w in deployment.workers}
    assert first is not None

    async def killed() -> list[calls.Answer]:
        sending = asyncio.create_task(calls.all_of(deployment.router_url, bodies(), CONCURRENCY))
        await asyncio.sleep(1)
        os.kill(first, signal.SIGKILL)
        return await sending

    answers = calls.run(killed())

    assert [answer.error for answer in answers if answer.error] == []
    assert [answer.ids for answer in answers] == undisturbed
    assert {w.name: w.pid for w in deployment.workers} == before
    # The next start waits for another one, and is forked from that.
    worker = deployment.worker("decode-1")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    back = deployment.wait_ready(worker.name, worker.restarts + 1)
    assert deployment.preloaded_pid not in (None, first)
    assert "not forked" not in back.log.read_text()
    calls.run(settled(deployment))


async def test_a_kv_transfer_is_reported(deployment: Running) -> None:
    await settled(deployment)
    prefill = next(worker for worker in deployment.workers if worker.role == "prefill")
    body = calls.greedy(calls.prompt("moved", 300), 4, True)
    async with events(prefill.url) as stream, calls.session() as http:
        assert (await anext(stream))["fingerprint"].startswith("sha256:")
        request = asyncio.create_task(calls.generate(http, deployment.router_url, body))
        tokens = 0
        async for event in stream:
            if event["type"] == "prefill_done":
                tokens = event["prompt_tokens"]
            if event["type"] == "kv_transfer":
                # 6 layers x (key + value) x 2 KV heads x 64 dimensions x 4 bytes
                assert event["bytes"] == tokens * 6 * 2 * 2 * 64 * 4
                assert event["tokens"] == tokens
                assert 0 < event["seconds"] < 5
                break
        await request


async def used_tokens(deployment: Running) -> dict[str, int]:
    """KV tokens in use that each worker itself reports."""
    used = {}
    for worker in deployment.workers:
        async with events(worker.url) as stream:
            async for event in stream:
                if event["type"] == "load":
                    used[worker.name] = event["used_tokens"]
                    break
    return used


async def idle(deployment: Running) -> bool:
    return not any((await used_tokens(deployment)).values())


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_client_that_goes_away_frees_the_kv(deployment: Running, stream: bool) -> None:
    await settled(deployment)
    await calls.until(lambda: idle(deployment), "no KV in use before the request")
    body = calls.greedy(calls.prompt("gone", 600), 4000, stream)
    async with calls.session() as http:
        request = asyncio.create_task(calls.generate(http, deployment.router_url, body))

        async def decoding() -> bool:
            used = await used_tokens(deployment)
            return any(used[name] >= 600 for name in used if name.startswith("decode"))

        await calls.until(decoding, "the decode worker holds the prompt's KV")
        request.cancel()
    await calls.until(lambda: idle(deployment), "the KV of both workers is free again")
    failed = {
        row["name"]: row["inflight"] for row in (await state(deployment.router_url))["workers"]
    }
    assert not any(failed.values())


@contextmanager
def small_router(deployment: Running, folder: Path) -> Iterator[str]:
    """A second router before the same workers that takes two requests and lets two wait."""
    config = json.loads((deployment.run_dir / "router.json").read_text())
    port = free_port()
    config |= {"host": "127.0.0.1", "port": port, "admin_port": free_port()}
    config |= {"max_inflight": 2, "max_queue": 2}
    path = folder / "router.json"
    path.write_text(json.dumps(config))
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.router", str(path)],
            stdout=log,
            stderr=log,
            env={**os.environ, WORKER_KEY_VARIABLE: deployment.worker_key},
        )
    url = f"http://127.0.0.1:{port}"

    async def ready() -> bool:
        assert process.poll() is None, (folder / "router.log").read_text()
        try:
            async with calls.session() as http, http.get(url + "/readiness") as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        calls.run(calls.until(ready, "the second router is ready"))
        yield url
    finally:
        process.kill()
        process.wait()


def test_saturation_is_a_bounded_queue_and_then_429(deployment: Running, tmp_path: Path) -> None:
    async def burst(url: str) -> list[tuple[int, str | None]]:
        body = calls.greedy(calls.prompt("burst", 20), 48, stream=False)
        async with calls.session() as http:

            async def one() -> tuple[int, str | None]:
                async with http.post(url + "/generate", json=body) as answer:
                    await answer.read()
                    return answer.status, answer.headers.get("Retry-After")

            return list(await asyncio.gather(*(one() for _ in range(12))))

    calls.run(settled(deployment))
    with small_router(deployment, tmp_path) as url:
        results = calls.run(burst(url))
        after = calls.run(burst(url))
    statuses = [status for status, _ in results]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    assert all(wait for status, wait in results if status == 429)
    assert 200 in [status for status, _ in after], "the queue did not drain"
