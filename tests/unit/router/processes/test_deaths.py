"""A router of several processes, of which some are killed or stopped: who loses what."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import psutil
import pytest

from tests.present import present
from tests.standin.cluster import Cluster
from tests.standin.relays import DECIDER, RELAYS, clients_of, kill, processes, until_all_accept
from tests.standin.storm import Traffic
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of

pytestmark = pytest.mark.touched("router")

PATH = "/v1/completions"
CONFIG: dict[str, Any] = {"relays": RELAYS, "rerun_wait_s": 20, "no_worker_wait_s": 20}
ARGS = ["--token-ms", "10", "--steps"]


async def test_a_killed_decider_loses_and_changes_nothing() -> None:
    async with Cluster(prefills=2, decodes=3, worker_args=ARGS, config=CONFIG) as cluster:
        traffic, over = Traffic(cluster, 48, seed=1), asyncio.Event()
        running = asyncio.create_task(traffic.run(None, 40, over=over))
        for _ in range(3):
            await asyncio.sleep(0.4)
            await kill(cluster, DECIDER)
        await asyncio.sleep(0.4)
        over.set()
        checked = await running
        assert checked.lost == checked.wrong == 0, checked.why
        assert checked.good > 100
        state = await cluster.until(idle)
        assert state["retried"] == state["resumed"] == 0, "what ran was known to the next one"


@pytest.mark.parametrize("policy", ["br0", "pooled@shortest_queue"])
async def test_prefills_that_wait_in_the_pool_are_assigned_by_the_next_decider(policy: str) -> None:
    """They wait for a slot of the one decode worker; the new decider knows their prefills."""
    config = CONFIG | {"decode_policy": policy, "parked_per_prefill": 32}
    args = {"decode": [*ARGS, "--slots", "2"], "prefill": []}
    async with Cluster(decodes=1, role_args=args, config=config) as cluster:
        calls = [asyncio.ensure_future(post(cluster, PATH, bodies(30)[PATH])) for _ in range(12)]
        await cluster.until(lambda state: state["pool"]["waiting"] > 5)
        await kill(cluster, DECIDER)
        for status, raw in await asyncio.gather(*calls):
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 30))
        await cluster.until(idle)
        assert (await cluster.stats("prefill-0"))["posts"] == 12, "no prompt was computed twice"


async def test_a_killed_relay_costs_its_own_clients_alone() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        ended: dict[int, tuple[int, bytes] | None] = {}

        async def one() -> None:
            """A stream on a connection of its own."""
            async with aiohttp.ClientSession() as http:
                port = 0
                try:
                    body = bodies(150)[PATH]
                    async with http.post(cluster.url + PATH, json=body) as answer:
                        transport = present(present(answer.connection).transport)
                        port = transport.get_extra_info("sockname")[1]
                        ended[port] = None
                        ended[port] = (answer.status, await answer.read())
                except aiohttp.ClientError:
                    ended[port] = None

        await until_all_accept(cluster)
        calls = [asyncio.create_task(one()) for _ in range(40)]
        await cluster.until(lambda state: state["running"] == 40)
        while len(ended) < 40:
            await asyncio.sleep(0.01)
        dying = clients_of(cluster, "tk-relay-1") & set(ended)
        assert 0 < len(dying) < 40
        await kill(cluster, "tk-relay-1")
        await asyncio.gather(*calls)
        assert {port for port, answer in ended.items() if answer is None} == dying
        for status, raw in (answer for answer in ended.values() if answer is not None):
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 150))
        await cluster.until(idle)
        told = [len((await cluster.stats(f"decode-{n}"))["aborted"]) for n in range(2)]
        assert sum(told) >= len(dying), "their workers were told to drop them"
        status, raw = await post(cluster, PATH, bodies(5)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 5))


async def test_all_processes_killed_at_once_come_back() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        calls = [asyncio.ensure_future(post(cluster, PATH, bodies(200)[PATH])) for _ in range(8)]
        await cluster.until(lambda state: state["running"] == 8)
        await asyncio.gather(*(kill(cluster, name) for name in list(processes(cluster))))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, aiohttp.ClientError)
        await cluster.until_ready()
        status, raw = await post(cluster, PATH, bodies(5)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 5))
        await cluster.until(idle)
        # Nobody told the workers: that the connections are gone did.
        await cluster.until_stats(lambda stats: all(not each["running"] for each in stats.values()))


async def test_a_decider_that_stands_still_is_waited_for_and_then_said() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        long = asyncio.ensure_future(post(cluster, PATH, bodies(300)[PATH]))
        await cluster.until(lambda state: state["running"] == 1)
        decider = processes(cluster)[DECIDER]
        decider.send_signal(signal.SIGSTOP)
        held = asyncio.ensure_future(post(cluster, PATH, bodies(5)[PATH]))
        await asyncio.sleep(2.5)  # longer than relays wait for word
        assert not held.done(), "what came before that is held"
        posts = (await cluster.stats("prefill-0"))["posts"]
        async with cluster.session.post(cluster.url + PATH, json=bodies(5)[PATH]) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
            assert b"deciding process does not answer" in await answer.read()
        async with cluster.session.get(cluster.url + "/readiness") as answer:
            assert answer.status == 503
        async with cluster.session.get(cluster.url + "/health") as answer:
            assert answer.status == 200
        assert (await cluster.stats("prefill-0"))["posts"] == posts, "nothing was sent blind"
        decider.send_signal(signal.SIGCONT)
        for call, tokens in ((held, 5), (long, 300)):
            status, raw = await call
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), tokens))
        assert processes(cluster)[DECIDER].pid == decider.pid
        await cluster.until(idle)


@pytest.mark.slow
async def test_a_decider_that_hangs_is_replaced() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        decider = processes(cluster)[DECIDER]
        held = asyncio.ensure_future(post(cluster, PATH, bodies(5)[PATH]))
        decider.send_signal(signal.SIGSTOP)
        status, raw = await held
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 5))
        await cluster.until_ready()
        assert not decider.is_running() or decider.status() == psutil.STATUS_ZOMBIE
        status, raw = await post(cluster, PATH, bodies(5)[PATH])
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 5))


@pytest.mark.slow
async def test_a_machine_that_was_suspended_loses_nothing() -> None:
    """All processes stand still, longer than one alone may."""
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        assert cluster.router is not None
        call = asyncio.ensure_future(post(cluster, PATH, bodies(400)[PATH]))
        await cluster.until(lambda state: state["running"] == 1)
        before = {name: each.pid for name, each in processes(cluster).items()}
        pids = [cluster.router.pid, *before.values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(7.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        status, raw = await call
        assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 400))
        await cluster.until(idle)
        assert {name: each.pid for name, each in processes(cluster).items()} == before


async def test_what_operators_switched_outlives_the_decider() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        wanted = {"decode": "round_robin", "first_token": "decode", "moves": "replay"}
        assert (await post(cluster, "/admin/policy", wanted, admin=True))[0] == 200
        order = {"worker": "decode-1", "deadline_s": 1}
        assert (await post(cluster, "/admin/drain", order, admin=True))[0] == 200
        await kill(cluster, DECIDER)
        await cluster.until_ready()
        state = await cluster.state()
        assert state["policies"]["decode"] == "round_robin"
        assert state["first_token"] == "decode" and state["moves"]["kind"] == "replay"
        held = {row["name"] for row in state["workers"] if row["held"]}
        assert held == {"decode-1"}


async def test_the_others_end_with_the_supervisor() -> None:
    async with Cluster(decodes=1, config=CONFIG) as cluster:
        assert cluster.router is not None
        router = psutil.Process(cluster.router.pid)
        everyone = router.children(recursive=True)
        assert len(everyone) >= RELAYS + 1
        os.kill(router.pid, signal.SIGKILL)
        _, alive = await asyncio.to_thread(psutil.wait_procs, everyone, 5)
        assert alive == []


async def test_a_signal_lets_what_runs_end() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        calls = [asyncio.ensure_future(post(cluster, PATH, bodies(60)[PATH])) for _ in range(10)]
        await cluster.until(lambda state: state["running"] == 10)
        router = cluster.router
        assert router is not None
        router.send_signal(signal.SIGTERM)
        for status, raw in await asyncio.gather(*calls):
            assert (status, text_of(PATH, raw)) == (200, expected(prompt_of(PATH), 60))
        assert await asyncio.to_thread(router.wait, 10) == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        call = asyncio.ensure_future(post(cluster, PATH, bodies(2000)[PATH]))
        await cluster.until(lambda state: state["running"] == 1)
        router = cluster.router
        assert router is not None
        router.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert router.poll() is None
        router.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(router.wait, 10) == 0
        with pytest.raises(aiohttp.ClientError):
            await call
