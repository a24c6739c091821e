"""A decode worker that is chosen before the prompt is through: answers, order, failures."""

import asyncio
import re
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of

pytestmark = pytest.mark.touched("router")

PATHS = list(bodies(1))
NEAR_MS = 500


def near(prefill: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Arguments of a cluster whose prefills take a second, and ask after the half of it."""
    asks = ["--prefill-ms", str(2 * NEAR_MS), "--near-ms", str(NEAR_MS)]
    decode = ["--kv-ms", str(1.2 * NEAR_MS), "--resume"]
    return {"role_args": {"prefill": [*asks, *prefill], "decode": decode}} | more


async def chosen(cluster: Cluster) -> int:
    async with cluster.session.get(cluster.url + "/metrics") as answer:
        text = await answer.text()
    found = re.search(r"^toolkit_router_chosen_early_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [(), ("--first-token",)], ids=["decode's", "prefill's"])
async def test_answers_are_the_same_and_counted_once(path: str, first: tuple[str, ...]) -> None:
    async with Cluster(**near(first, decodes=2)) as cluster:
        asked = [bodies(12)[path], bodies(7)[path], bodies(9, stream=False)[path]]
        told = []
        for early in (False, True):
            status, _ = await post(cluster, "/admin/policy", {"early_choice": early}, admin=True)
            assert status == 200
            answers = await asyncio.gather(*(post(cluster, path, body) for body in asked))
            assert [status for status, _ in answers] == [200] * len(asked)
            told.append([text_of(path, raw) for _, raw in answers[:2]])
            assert await chosen(cluster) == (len(asked) if early else 0)
        assert told[0] == told[1] == [expected(prompt_of(path), 12), expected(prompt_of(path), 7)]
        state = await cluster.until(idle)
        assert state["early_choice"] is True
        assert sum(row["completed"] for row in state["workers"] if row["role"] == "decode") == 6


async def test_the_decode_worker_hears_of_it_while_the_prompt_runs() -> None:
    async with Cluster(**near(decodes=1)) as cluster:
        path = "/v1/completions"
        call = asyncio.ensure_future(post(cluster, path, bodies(3)[path]))

        def both(state: dict[str, Any]) -> bool:
            return all(row["inflight"] == 1 for row in state["workers"])

        await cluster.until(both)
        assert not call.done()
        assert (await call)[0] == 200
        timing = (await cluster.until(idle))["timing"]
        # Both are counted from what the prefill worker says: its end, and that it is near.
        assert timing["prefill_ms"]["p50"] > 1.5 * NEAR_MS
        assert timing["decide_ms"]["p50"] < NEAR_MS


async def test_a_decode_worker_is_not_given_up_while_the_prompt_runs() -> None:
    """It says nothing before the KV is there, longer than one may whose prefill has run."""
    config = {"first_token_timeout_s": 0.5 * NEAR_MS / 1e3}
    async with Cluster(**near(decodes=1, config=config)) as cluster:
        path = "/v1/completions"
        status, raw = await post(cluster, path, bodies(3)[path])
        assert status == 200 and text_of(path, raw) == expected(prompt_of(path), 3)
        state = await cluster.until(idle)
        assert state["retried"] == state["resumed"] == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_dies_in_between_costs_another_attempt(role: str) -> None:
    async with Cluster(**near(prefills=2, decodes=2)) as cluster:
        path = "/v1/completions"
        call = asyncio.ensure_future(post(cluster, path, bodies(6)[path]))

        def bound(state: dict[str, Any]) -> bool:
            return sum(row["inflight"] for row in state["workers"]) == 2

        state = await cluster.until(bound)
        name = next(r["name"] for r in state["workers"] if r["role"] == role and r["inflight"])
        cluster.worker(name).kill()
        status, raw = await call
        assert status == 200 and text_of(path, raw) == expected(prompt_of(path), 6)
        state = await cluster.until(idle)
        assert state["retried"] + state["resumed"] == 1


async def test_a_switch_that_is_neither_true_nor_false_is_refused() -> None:
    async with Cluster(**near()) as cluster:
        status, raw = await post(cluster, "/admin/policy", {"early_choice": "yes"}, admin=True)
        assert status == 400 and b"early_choice must be true or false" in raw
