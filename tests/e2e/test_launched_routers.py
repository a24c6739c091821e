"""Several routers that the launcher starts, watches and ends: launch/cpu-routers.yaml, and one on
each of two hosts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.e2e import calls, lending
from tests.e2e.commands import ordered, toolkit
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.test_several_routers import right, routers_are
from tests.e2e.workers import state
from tests.ports import free_port
from tests.present import present
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch import readiness, trees
from toolkit.launch.ports import is_free
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running, running
from toolkit.launch.state import read_state
from toolkit.settings.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS, LONG = 24, 300


def nothing_is_left(up: Running) -> None:
    """Neither processes, nor what they had: /dev/shm is looked at after the last test of a file."""
    assert not trees.members({}, up.supervisor.run_id)
    for router in up.plan.own_routers:
        for port in (router.port, (router.config or {})["admin_port"]):
            assert is_free(port)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With relays, so that there are folders and sockets to leave behind, and code to upgrade."""
    source = shipped("cpu-routers", router={"relays": 2})
    with deployed(source, tmp_path_factory.mktemp("routers")) as started:
        yield started
    nothing_is_left(started)


def test_both_serve_and_are_shown(up: Running, reference: Reference) -> None:
    asked = [calls.prompt(f"launched-{n}", 10 + n % 60) for n in range(24)]
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 > 0) for n, ids in enumerate(asked)]

    async def scenario() -> list[calls.Answer]:
        for url in up.plan.entry_urls:
            await routers_are(url, 2)
        halves = [calls.all_of(url, bodies[n::2], 6) for n, url in enumerate(up.plan.entry_urls)]
        both = await asyncio.gather(*halves)
        return [answer for pair in zip(*both, strict=True) for answer in pair]

    right(calls.run(scenario()), asked, TOKENS, reference)
    for url in up.plan.entry_urls:
        rows = calls.run(state(url))["workers"]
        assert sum(row["completed"] for row in rows if row["role"] == "decode") >= 12
    shown = toolkit(up.run_dir, "status")
    assert shown.returncode == 0
    for router in up.plan.routers:
        assert router.name in shown.stdout and str(router.port) in shown.stdout
        assert (up.run_dir / router.file).is_file()
        assert (up.run_dir / f"{router.name}.log").stat().st_size


def test_one_that_is_killed_comes_back_and_costs_the_other_one_nothing(
    up: Running, reference: Reference
) -> None:
    stays, dies = up.plan.routers
    mine = [calls.prompt(f"stays-{n}", 20 + n) for n in range(8)]
    theirs = [calls.greedy(calls.prompt(f"dies-{n}", 60), LONG, stream=True) for n in range(6)]
    process = up.supervisor.fleet.processes[dies.name]

    async def scenario() -> tuple[list[calls.Answer], list[calls.Answer]]:
        bodies = [calls.greedy(ids, LONG, stream=True) for ids in mine]
        dying = asyncio.create_task(calls.all_of(dies.url, theirs, len(theirs)))
        going = asyncio.create_task(calls.all_of(stays.url, bodies, len(bodies)))

        async def under_way() -> bool:
            return bool((await state(dies.url))["running"] >= len(theirs))

        await calls.until(under_way, "its requests run")
        os.kill(present(process.pid), signal.SIGKILL)
        return await going, await dying

    before = process.restarts
    kept, lost = calls.run(scenario())
    right(kept, mine, LONG, reference)
    assert all(answer.error for answer in lost)
    up.wait_ready(dies.name, restarts=before + 1)
    assert up.supervisor.fleet.processes[stays.name].restarts == 0

    async def again() -> list[calls.Answer]:
        for url in up.plan.entry_urls:
            await routers_are(url, 2)
        bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in mine]
        return await calls.all_of(dies.url, bodies, len(bodies))

    right(calls.run(again()), mine, TOKENS, reference)


def test_orders_go_to_both_while_they_serve(up: Running, reference: Reference) -> None:
    """A drain leaves nothing of either's requests on a worker, and an upgrade loses none."""
    asked = [calls.prompt(f"ordered-{n}", 20 + n) for n in range(12)]
    bodies = [calls.greedy(ids, LONG, stream=True) for ids in asked]

    async def scenario() -> list[calls.Answer]:
        halves = [
            asyncio.create_task(calls.all_of(url, bodies[n::2], len(bodies)))
            for n, url in enumerate(up.plan.entry_urls)
        ]
        for url in up.plan.entry_urls:

            async def under_way(url: str = url) -> bool:
                return bool((await state(url))["running"] >= len(bodies) // 2)

            await calls.until(under_way, "its requests run")
        loop = asyncio.get_running_loop()
        for words, says in (
            (("drain", "decode-0"), "decode-0: empty"),
            (("drain", "decode-0", "--undo"), "gets requests again"),
            (("upgrade", "router"), "router-1: upgraded"),
        ):
            status, said = await loop.run_in_executor(None, ordered, up, *words)
            assert status == 0 and says in said, said
            if "--undo" not in words and words[0] == "drain":
                for url in up.plan.entry_urls:
                    rows = (await state(url))["workers"]
                    assert {r["held"] for r in rows if r["name"] == "decode-0"} == {True}
        assert "router-0: upgraded" in said
        both = await asyncio.gather(*halves)
        return [answer for pair in zip(*both, strict=True) for answer in pair]

    right(calls.run(scenario()), asked, LONG, reference)


def test_each_host_has_its_own_and_one_host_may_go(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts, both of this machine: each command starts what belongs to its own."""
    monkeypatch.setenv("SHARED_KEY", "of-both-hosts")
    monkeypatch.setenv(WORKER_KEY_VARIABLE, "of-both-hosts")
    source = shipped(
        "cpu-routers", base_port=free_port(20), worker_key_env="SHARED_KEY",
        hosts={"a": {"address": "127.0.0.1"}, "b": {"address": "127.0.0.2"}},
        prefill={"hosts": ["a"]}, decode={"hosts": ["a", "b"]},
        router={"node": ["a", "b"], "routers": None},
    )  # fmt: skip
    plans = {host: resolve(Deployment.model_validate(source), host) for host in "ab"}
    asked = [calls.prompt(f"hosts-{n}", 20 + n) for n in range(8)]
    bodies = [calls.greedy(ids, LONG, stream=True) for ids in asked]
    ends = {host: ExitStack() for host in "ab"}

    def start(host: str) -> Running:
        return ends[host].enter_context(running(plans[host], tmp_path / host))

    with lending.lent(), ends["a"], ends["b"], ThreadPoolExecutor(2) as both:
        here, there = both.map(start, "ab")
        assert [router.name for router in here.plan.own_routers] == ["router-0"]
        assert [router.name for router in there.plan.own_routers] == ["router-1"]
        assert sorted(worker.name for worker in there.workers) == ["decode-1"]
        assert {row["name"] for row in read_state(tmp_path / "b")["routers"]} == {"router-1"}
        urls = [here.router_url, there.router_url]
        assert urls == [router.url for router in here.plan.routers]

        async def drained() -> list[calls.Answer]:
            """A worker of the other host, by an order that one host's routers get."""
            for url in urls:
                await routers_are(url, 2)
            halves = [
                asyncio.create_task(calls.all_of(url, bodies[n::2], len(bodies)))
                for n, url in enumerate(urls)
            ]
            for url in urls:
                await calls.until(partial(runs, url, len(bodies) // 2), "its requests run")
            status, said = await asyncio.to_thread(ordered, here, "drain", "decode-1")
            assert status == 0 and "decode-1: empty" in said, said
            assert not any([await inflight(url, "decode-1") for url in urls])
            assert [await held(url) for url in urls] == [{"decode-1"}, {"decode-1"}]
            status, said = await asyncio.to_thread(ordered, here, "drain", "decode-1", "--undo")
            assert status == 0 and [await held(url) for url in urls] == [set(), set()], said
            both = await asyncio.gather(*halves)
            status, said = await asyncio.to_thread(ordered, here, "drain", "decode-1", "--stop")
            assert status and "no worker of this run" in said
            status, said = await asyncio.to_thread(ordered, there, "restart", "--rolling")
            assert status == 0 and "decode-1: restarted" in said and "decode-0" not in said, said
            return [answer for pair in zip(*both, strict=True) for answer in pair]

        right(calls.run(drained()), asked, LONG, reference)

        async def scenario() -> list[calls.Answer]:
            for url in urls:
                await routers_are(url, 2)
            first = await calls.all_of(urls[1], bodies[:2], 2)
            going = asyncio.create_task(calls.all_of(urls[0], bodies[2:], len(bodies)))

            async def under_way() -> bool:
                return bool((await state(urls[0]))["running"] >= len(bodies) - 2)

            await calls.until(under_way, "its requests run")
            kill_all_of(there)
            return [*first, *await going]

        right(calls.run(scenario()), asked, LONG, reference)
        assert readiness.get(f"{urls[0]}/readiness")[0] == 200


async def runs(url: str, count: int) -> bool:
    return bool((await state(url))["running"] >= count)


async def held(url: str) -> set[str]:
    return {row["name"] for row in (await state(url))["workers"] if row["held"]}


async def inflight(url: str, worker: str) -> int:
    """Requests of that router's."""
    rows = (await state(url))["workers"]
    return sum(row["inflight"] for row in rows if row["name"] == worker)


def kill_all_of(up: Running) -> None:
    """A host that goes: all at once, and none is started again."""
    up.supervisor.request_stop(now=True)
    for process in trees.members({}, up.supervisor.run_id):
        if process.pid != up.supervisor.fleet.guard.pid:
            psutil.Process(process.pid).kill()
