"""The router's decider hears of everything by messages: another one that is told the same decides
the same, through kills, moves, drains and switches of policies."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.standin.storm import FAULTS, Checked, Storm, Traffic
from tests.unit.router.cluster_calls import idle, post

CONFIG = {
    "silent_s": 0.8, "hung_s": 1.5, "rerun_wait_s": 20, "no_worker_wait_s": 20,
    "prefill_wait_s": 5, "first_token_timeout_s": 1.5, "idle_timeout_s": 1.5,
    "rebalance": {"every_s": 0.05, "reserve": 0},
}  # fmt: skip
ENOUGH = 500
"""Requests: a dozen messages each and more."""


async def _order(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    await post(cluster, path, body, admin=True)


async def _operate(cluster: Cluster, policies: Sequence[str], over: asyncio.Event) -> None:
    """What operators do, again and again; no drain is left in force."""
    turn = 0
    while not over.is_set():
        turn += 1
        worker, other = f"decode-{turn % 3}", f"decode-{(turn + 1) % 3}"
        await _order(cluster, "/admin/policy", {"decode": policies[turn % len(policies)]})
        await _order(cluster, "/admin/migrate", {"from": worker, "to": other, "count": 2})
        await _order(cluster, "/admin/drain", {"worker": worker, "deadline_s": 0.2})
        await _order(cluster, "/admin/drain", {"worker": worker, "undo": True})
        dispatch = "late" if turn % 5 else "concurrent"
        await _order(cluster, "/admin/policy", {"decode": "round_robin", "dispatch": dispatch})


async def _kill_one_that_answers(storm: Storm, cluster: Cluster) -> Checked:
    """Whether the storm meets a request is chance: it may strike a worker that was drained. Its
    requests are over here, for one that saw two workers die would rightly be refused."""

    def answers(state: dict[str, Any]) -> bool:
        found = next(w for w in state["workers"] if w["name"] == "decode-0")
        return bool(found["healthy"] and found["inflight"] >= 5)

    over = asyncio.Event()
    running = asyncio.create_task(
        Traffic(cluster, 24, seed=4, limit_s=30.0).run(None, 40, over=over)
    )
    await cluster.until(answers)
    await storm.strike("kill", "decode-0")
    over.set()
    return await running


@pytest.mark.slow
@pytest.mark.parametrize("stages", [False, True])
async def test_a_decider_that_hears_the_same_messages_gives_the_same_orders(
    stages: bool, tmp_path: Path
) -> None:
    shadow = tmp_path / "shadow.json"
    laid = {"stages": [{"upto": 60, "replicas": 2}, {}]} if stages else {}
    args = ["--token-ms", "10", "--steps", "--resume"]
    async with Cluster(
        prefills=2,
        decodes=3,
        worker_args=args,
        config=CONFIG | laid,
        router_module="tests.standin.shadowed_router",
        env={"ROUTER_SHADOW": str(shadow)},
    ) as cluster:
        storm = Storm(cluster, ["decode-0", "prefill-0"], every_s=0.9, lasts_s=0.8, seed=3)
        traffic, over = Traffic(cluster, 24, seed=3, limit_s=30.0), asyncio.Event()
        running = asyncio.create_task(traffic.run(None, 40, over=over))
        policies = ("shortest_queue", "brh@survival", "level", "pooled@least_tokens")
        operator = asyncio.create_task(_operate(cluster, policies, over))
        await storm.run(len(FAULTS) + 1)
        while traffic.checked.sent < ENOUGH:  # a slow machine sends fewer in the same time
            await asyncio.sleep(0.1)
        over.set()
        await operator
        await _order(cluster, "/admin/policy", {"decode": "shortest_queue", "dispatch": "late"})
        for checked in (await running, await _kill_one_that_answers(storm, cluster)):
            assert checked.lost == checked.wrong == 0, checked.why
        await cluster.until(idle)
    found = json.loads(shadow.read_text())
    assert found["differences"] == []
    assert found["left"] == dict.fromkeys(found["left"], 0)
    kinds = {
        "Arrive",
        "Failed",
        "WorkerDied",
        "Hold",
        "Empty",
        "MoveAsked",
        "UsePolicy",
        "RunningSeen",
    }
    assert kinds <= found["messages"].keys()
    assert {"PrefillOrder", "DecodeOrder", "MoveOrder", "Again"} <= found["orders"].keys()
    assert sum(found["messages"].values()) > 5000
