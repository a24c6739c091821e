"""Two routers over the same real workers: both decide, each for its own requests, and one of them
is killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import calls, worker_key
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.workers import settled, state
from tests.ports import free_port
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS, LONG, PARKED = 24, 200, 4


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-demo.yaml with the router that it has."""
    source = shipped("cpu-demo", router={"parked_per_prefill": PARKED})
    with deployed(source, tmp_path_factory.mktemp("routers")) as up:
        yield up


@contextmanager
def another(up: Running, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A second router with the configuration of the first, on ports of its own."""
    config = json.loads((up.run_dir / "router.json").read_text())
    config |= {"port": free_port(), "admin_port": free_port()}
    file = folder / "router.json"
    file.write_text(json.dumps(config))
    environment = {**os.environ, WORKER_KEY_VARIABLE: worker_key.of(up)}
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.router", str(file)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    url = f"http://127.0.0.1:{config['port']}"
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "it does not serve"
            try:
                with urllib.request.urlopen(f"{url}/readiness", timeout=5):
                    break
            except OSError:
                time.sleep(0.05)
        yield url, process
    finally:
        process.kill()
        process.wait()


async def routers_are(url: str, count: int) -> None:
    """That router has heard of so many on every worker."""

    async def heard() -> bool:
        rows = (await state(url))["workers"]
        return {row.get("routers", 1) for row in rows} == {count}

    await calls.until(heard, f"all workers say that they have {count} routers")


def right(
    answers: list[calls.Answer], asked: list[list[int]], tokens: int, reference: Reference
) -> None:
    assert [answer.error for answer in answers] == [""] * len(asked)
    expected = reference.greedy_each(asked, tokens, [answer.ids for answer in answers])
    assert [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("policy", ["eldr", "br0"])
def test_two_routers_serve_what_came_to_each_and_know_of_each_other(
    workers: Running, reference: Reference, tmp_path: Path, policy: str
) -> None:
    asked = [calls.prompt(f"two-{policy}-{n}", 10 + n % 60) for n in range(48)]
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 > 0) for n, ids in enumerate(asked)]

    async def scenario(urls: list[str]) -> list[calls.Answer]:
        for url in urls:
            await routers_are(url, len(urls))
            await calls.switch(url, decode=policy)
        half = [calls.all_of(url, bodies[n::2], 6) for n, url in enumerate(urls)]
        both = await asyncio.gather(*half)
        return [answer for pair in zip(*both, strict=True) for answer in pair]

    with another(workers, tmp_path) as (other, _):
        answers = calls.run(scenario([workers.router_url, other]))
        right(answers, asked, TOKENS, reference)
        completed = [
            sum(row["completed"] for row in calls.run(state(url))["workers"])
            for url in (workers.router_url, other)
        ]
        assert min(completed) >= 24, "each has served its half"
        calls.run(settled(workers))
    calls.run(routers_are(workers.router_url, 1))


def test_a_router_that_is_killed_leaves_no_kv_and_costs_the_other_one_nothing(
    workers: Running, reference: Reference, tmp_path: Path
) -> None:
    mine = [calls.prompt(f"mine-{n}", 20 + n) for n in range(8)]
    theirs = [calls.prompt(f"theirs-{n}", 400 + n) for n in range(12)]
    long = [calls.greedy(ids, LONG, stream=True) for ids in mine]

    async def scenario(
        other: str, process: subprocess.Popen[bytes]
    ) -> tuple[list[calls.Answer], list[calls.Answer]]:
        await routers_are(workers.router_url, 2)
        bodies = [calls.greedy(ids, LONG, stream=True) for ids in theirs]
        dying = asyncio.create_task(calls.all_of(other, bodies, len(bodies)))
        going = asyncio.create_task(calls.all_of(workers.router_url, long, len(long)))

        async def under_way() -> bool:
            return bool((await state(other))["running"] >= len(bodies))

        await calls.until(under_way, "its requests run")
        await asyncio.sleep(0.5)  # some wait for their prefill, some are handed over, some decode
        process.kill()
        return await going, await dying

    with another(workers, tmp_path) as (other, process):
        kept, lost = calls.run(scenario(other, process))
    right(kept, mine, LONG, reference)
    assert any(answer.error for answer in lost)

    async def empty() -> bool:
        rows = (await state(workers.router_url))["workers"]
        held = [row["load"] for row in rows]
        return all(load is not None and not load["used_tokens"] for load in held if load) and all(
            row["load"]["running"] == row["load"]["waiting"] == 0 for row in rows if row["load"]
        )

    calls.run(calls.until(empty, "nothing of its requests is left on the workers"))
    calls.run(routers_are(workers.router_url, 1))
    again = [calls.prompt(f"afterwards-{n}", 30) for n in range(2 * PARKED)]
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in again]
    right(
        calls.run(calls.all_of(workers.router_url, bodies, len(bodies))), again, TOKENS, reference
    )
