"""A small storm: workers are killed, stopped, silenced and reset beside requests; none is lost.

`tests.benchmarks.abuse --part storm` is the large one.
"""

import asyncio
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.standin.storm import FAULTS, Storm, Traffic
from tests.unit.router.cluster_calls import idle

CONFIG = {
    "silent_s": 0.8, "hung_s": 1.5, "rerun_wait_s": 20, "no_worker_wait_s": 20,
    "prefill_wait_s": 5, "first_token_timeout_s": 1.5, "idle_timeout_s": 1.5,
}  # fmt: skip


@pytest.mark.slow
async def test_a_storm_loses_and_changes_nothing() -> None:
    args = ["--token-ms", "10", "--steps"]
    async with Cluster(prefills=2, decodes=3, worker_args=args, config=CONFIG) as cluster:
        names = [worker.name for worker in cluster.workers]
        storm = Storm(cluster, names, every_s=0.9, lasts_s=0.8, seed=3)
        traffic, over = Traffic(cluster, 24, seed=3, limit_s=30.0), asyncio.Event()
        running = asyncio.create_task(traffic.run(None, 60, over=over))
        # Each fault once and one of them twice, however long a busy machine takes for a start.
        await storm.run(len(FAULTS) + 1)
        over.set()
        checked = await running
        assert checked.lost == checked.wrong == 0, checked.why
        assert checked.good > 50
        assert all(storm.faults.values()), storm.faults
        await cluster.until(idle)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_one_fault_of_each_kind_beside_streams(fault: Any, role: str) -> None:
    args = ["--token-ms", "10", "--steps"]
    async with Cluster(prefills=2, decodes=2, worker_args=args, config=CONFIG) as cluster:
        storm = Storm(cluster, [], every_s=1.0, lasts_s=1.0, seed=3)
        traffic = Traffic(cluster, 24, seed=4, limit_s=20.0)
        running = asyncio.create_task(traffic.run(None, 20, until_s=1.8))
        await asyncio.sleep(0.4)
        await storm.strike(fault, f"{role}-0")
        checked = await running
        assert checked.lost == checked.wrong == 0, checked.why
        assert checked.good > 20
        await cluster.until(idle)
