"""Centroids follow the decode workers: lost, back, never there, several ranks, killed refits."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster, of_one_process
from tests.unit.launch.stand_ins import wait_gone
from tests.unit.router.eldr.children import children
from tests.unit.router.eldr.cluster import Traffic, admin, eldr_cluster, metrics, write_profile
from toolkit.launch import trees

pytestmark = pytest.mark.touched("eldr")

WITHIN_S = 2.0
SLOW_S = 20.0
"""For what has to be fitted first: the tests' machine may be busy."""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


def centroids(count: int) -> Any:
    return lambda state: state["eldr"]["centroids"] == count


async def refit_processes(cluster: Cluster) -> int:
    return int((await metrics(cluster))["eldr_refit_seconds_count"])


async def prepared(cluster: Cluster) -> None:
    """Until the router has fitted ahead what a loss would need."""
    for _ in range(500):
        if await refit_processes(cluster):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("nothing was fitted ahead")


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
async def test_a_worker_is_lost_and_comes_back(profile: Any, ahead: bool) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        if ahead:
            await prepared(cluster)
        within = WITHIN_S if ahead else SLOW_S
        lost = cluster.worker("decode-2")
        os.kill(lost.pid, signal.SIGKILL)
        state = await cluster.until(centroids(3), within)
        owners = state["eldr"]["owners"]
        assert sorted(owners) == ["decode-0", "decode-1", "decode-3"]
        assert sorted(owners.values()) == [0, 1, 2]
        # Those that remain keep what is most like what they had.
        for kind in (0, 1, 3):
            assert await traffic.served_by(kind) == {f"decode-{kind}"}
        lost.kill()
        lost.start()
        state = await cluster.until(centroids(4), SLOW_S)
        for kind in range(4):
            assert await traffic.served_by(kind) == {f"decode-{kind}"}
        assert [r["cause"] for r in state["eldr"]["refits"]] == ["workers", "workers"]
        assert [r["gone"] for r in state["eldr"]["refits"]] == ["decode-2", ""]
        assert state["eldr"]["fallbacks"] == {}


@pytest.mark.slow
async def test_two_are_lost_one_after_the_other_and_one_comes_back(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        for name in ("decode-0", "decode-3"):
            os.kill(cluster.worker(name).pid, signal.SIGKILL)
        await cluster.until(centroids(2), SLOW_S)
        first = cluster.worker("decode-3")
        first.kill()
        first.start()
        state = await cluster.until(centroids(3), SLOW_S)
        assert sorted(state["eldr"]["owners"]) == ["decode-1", "decode-2", "decode-3"]
        homes = [await traffic.served_by(kind) for kind in (0, 1, 3)]
        assert sorted(homes, key=min) == [{"decode-1"}, {"decode-2"}, {"decode-3"}]


@pytest.mark.slow
async def test_a_worker_that_flaps_starts_no_refit_again_and_again(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        await prepared(cluster)
        worker = cluster.worker("decode-2")
        counts = []
        for _ in range(4):
            os.kill(worker.pid, signal.SIGKILL)
            await cluster.until(centroids(3), SLOW_S)
            worker.kill()
            worker.start()
            await cluster.until(centroids(4), SLOW_S)
            counts.append(await refit_processes(cluster))
        # Ahead: when there are four, and when there are three.
        await asyncio.sleep(1.0)
        assert await refit_processes(cluster) <= 3, counts


async def test_a_profile_for_another_number_of_workers_is_refitted_at_the_start(
    profile: Any,
) -> None:
    async with eldr_cluster(profile, decodes=3) as cluster:
        state = await cluster.until(centroids(3), SLOW_S)
        assert state["eldr"]["refits"][0]["come"] == "decode-0, decode-1, decode-2"
        assert len(await Traffic(cluster).served_by(1)) == 1


async def test_several_ranks_of_one_worker_have_a_centroid_each(profile: Any) -> None:
    async with eldr_cluster(
        profile,
        decodes=2,
        role_config={"decode": {"dp_size": 2}},
        role_args={"decode": ["--record"]},
    ) as cluster:
        traffic = Traffic(cluster)
        state = await cluster.state()
        assert state["eldr"]["owners"] == {
            "decode-0": 0,
            "decode-0/1": 1,
            "decode-1": 2,
            "decode-1/1": 3,
        }
        for kind in (0, 1):
            await traffic.send(kind)
        bodies = (await cluster.stats("decode-0"))["bodies"]
        assert [body["routed_dp_rank"] for body in bodies] == [0, 1]
        os.kill(cluster.worker("decode-0").pid, signal.SIGKILL)
        state = await cluster.until(centroids(2), SLOW_S)
        assert sorted(state["eldr"]["owners"]) == ["decode-1", "decode-1/1"]


@pytest.mark.parametrize("said", ["by the configuration", "by the workers"])
async def test_ranks_that_share_their_experts_have_one_centroid(profile: Any, said: str) -> None:
    """Two servers of two ranks; in the near one the shortest queue decides."""
    config, told = {"dp_size": 2}, ["--record"]
    if said == "by the workers":
        told.append("--dp-attention")
    else:
        config["dp_attention"] = True
    async with eldr_cluster(
        profile, decodes=2, role_config={"decode": config}, role_args={"decode": told}
    ) as cluster:
        state = await cluster.until(centroids(2), SLOW_S)
        assert state["eldr"]["owners"] == {"decode-0": 0, "decode-1": 1}
        traffic = Traffic(cluster)
        (home,) = await traffic.served_by(0, times=4)
        bodies = (await cluster.stats(home))["bodies"]
        assert sorted(body["routed_dp_rank"] for body in bodies) == [0, 0, 1, 1]
        state = await cluster.state()
        assert (state["eldr"]["located"], state["eldr"]["band_mean"]) == (4, 1.0)
        os.kill(cluster.worker(home).pid, signal.SIGKILL)
        state = await cluster.until(centroids(1), SLOW_S)
        await traffic.send(0)
        state = await cluster.state()
        assert state["eldr"]["fallbacks"] == {"all ranks share their experts": 1}


@of_one_process
@pytest.mark.slow
async def test_a_refit_that_is_killed_starves_nobody(profile: Any) -> None:
    """Until the next try a worker without a centroid takes part in another one's."""
    async with eldr_cluster(profile) as cluster:
        assert cluster.router is not None
        router = cluster.router.pid
        for name in ("decode-0", "decode-1", "decode-3"):
            os.kill(cluster.worker(name).pid, signal.SIGKILL)
        await cluster.until(centroids(1), SLOW_S)
        back = cluster.worker("decode-0")
        back.kill()
        back.start()
        killed = set()
        state: dict[str, Any] = {}
        begin = time.monotonic()
        while not failed(state) and time.monotonic() < begin + 20:
            for child in children(router):
                # One that was killed in the round before may be gone since it was listed.
                process = trees.look(child)
                if process is not None and trees.send(process, signal.SIGKILL):
                    killed.add(child)
            state = await cluster.state()
        assert killed
        state = await cluster.until(lambda s: len(s["eldr"]["owners"]) == 2)
        assert state["eldr"]["owners"] == {"decode-0": 0, "decode-2": 0}
        traffic = Traffic(cluster)
        await traffic.many([0, 1, 2, 3] * 8)
        served = await traffic.completed()
        assert all(served[f"decode-{number}"] for number in (0, 2)), served


def failed(state: dict[str, Any]) -> bool:
    return any(r["result"] == "failed" for r in state.get("eldr", {}).get("refits", []))


async def test_too_few_requests_in_the_profile_leave_nobody_out(tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "few", workers=2, requests=4)
    async with eldr_cluster(profile, decodes=5) as cluster:
        await cluster.until(lambda s: s["eldr"]["refits"], SLOW_S)
        eldr = (await cluster.state())["eldr"]
        assert eldr["refits"][0]["result"] == "failed"
        assert "cannot make 5 clusters" in eldr["refits"][0]["error"]
        traffic = Traffic(cluster)
        for _ in range(5):
            await traffic.send(0)
        assert set((await traffic.completed()).values()) == {1}
        assert (await cluster.state())["eldr"]["fallbacks"] == {"no centroids": 5}


async def test_a_router_that_is_killed_leaves_no_refit_behind(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        assert cluster.router is not None
        router = cluster.router.pid
        child = await a_stopped_refit(cluster, router)
        cluster.router.kill()
        cluster.router.wait()
        await asyncio.to_thread(wait_gone, [child])


async def test_a_router_that_ends_in_mid_refit_ends_the_refit(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        assert cluster.router is not None
        child = await a_stopped_refit(cluster, cluster.router.pid)
        cluster.router.terminate()
        assert await asyncio.to_thread(cluster.router.wait, 10) == 0
        assert not trees.is_running(child.pid, child.start)


async def a_stopped_refit(cluster: Cluster, router: int) -> trees.ProcessRow:
    """A refit process, stopped (SIGSTOP) before it could end.

    Not before it has tied itself to its router, which it does first: it must have numpy open, since
    a process that is stopped earlier cannot see that its router is gone.
    """
    await Traffic(cluster).many([0, 1, 2, 3] * 4)
    asking = asyncio.ensure_future(admin(cluster, "refit"))
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())
    for _ in range(2000):
        for child in children(router):
            process = trees.look(child)
            if process is None or "numpy" not in maps(child):
                continue
            if trees.send(process, signal.SIGSTOP):
                return process
        await asyncio.sleep(0.002)
    raise AssertionError("no refit process was seen")


def maps(pid: int) -> str:
    with suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"/proc/{pid}/maps").read_text()
    return ""
