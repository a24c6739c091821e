"""A start of a variant, on stand-in workers: what is played before a round counts."""

from dataclasses import replace

import pytest

from tests.standin.cluster import Cluster
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.source import Source
from toolkit.bench.suite.question import SuiteArm
from toolkit.bench.suite.start import SuiteStart, decode_steps
from toolkit.bench.suite.traffic import SuiteLoad
from toolkit.bench.target import Target, get_json
from toolkit.bench.workload import Item, Workload

ARM = SuiteArm("arm", "base", {"decode": "level"})


async def settled(steps: int, *args: str) -> tuple[int, int, str]:
    """Decode steps before and after, and the decode policy then."""
    rounds = [Workload(str(n), tuple(Item(f"{n} {i}", 8) for i in range(4))) for n in range(4)]
    async with (
        Cluster(worker_args=["--token-ms", "5", *args]) as cluster,
        new_session(60.0, None) as session,
    ):
        target, load = Target(cluster.url, "standin", None, None), BenchLoad(concurrency=2)
        start = SuiteStart(session, target, [], load, {"plain": rounds}, range(2))
        before = decode_steps(await get_json(session, cluster.url + "/workers"))
        await start.settle(ARM, steps)
        state = await get_json(session, cluster.url + "/workers")
        return before, decode_steps(state), state["policies"]["decode"]


async def test_so_many_steps_are_made_before_a_round_counts() -> None:
    before, after, policy = await settled(60, "--steps")
    assert before < 60 <= after and policy == "level"


async def test_requests_go_to_all_routers_in_turn_and_all_have_the_arms_policies() -> None:
    async with (
        Cluster(worker_args=["--token-ms", "5", "--steps"]) as one,
        Cluster(beside=one) as other,
        new_session(60.0, None) as session,
    ):
        load = SuiteLoad(Source(max_tokens=8), requests=4, concurrency=2, rounds=4)
        urls = [one.url, other.url]
        start = await SuiteStart.at(session, urls, load, range(2))
        start = replace(start, workers=[])  # stand-ins have no caches to empty
        await start.settle(ARM, 30)
        states = [await get_json(session, url + "/workers") for url in urls]
        assert [state["policies"]["decode"] for state in states] == ["level", "level"]
        served = [sum(row["completed"] for row in state["workers"]) for state in states]
        assert served[0] == served[1] > 0
        figures = await start.round(SuiteArm("arm", "base", {"decode": "round_robin"}), "plain", 0)
        assert figures["completed"] == 4
        for url in urls:
            state = await get_json(session, url + "/workers")
            assert state["policies"]["decode"] == "round_robin"


async def test_nothing_is_played_where_nothing_settles() -> None:
    before, after, policy = await settled(0, "--steps")
    assert before == after == 0 and policy != "level"


async def test_workers_that_count_no_steps_are_said() -> None:
    with pytest.raises(BenchError, match="count no steps"):
        await settled(60)
