"""Load for several routers over the same workers: each gets its part, and all are watched."""

from __future__ import annotations

from tests.standin.cluster import Cluster
from toolkit.bench.runner import BenchLoad, check, new_session, play
from toolkit.bench.target import discover, get_json, switch
from toolkit.bench.watch import added_up, lost_between, requests_per_worker, unhealthy
from toolkit.bench.workload import Item, Workload

ITEMS = tuple(Item(f"prompt {number}", 4) for number in range(12))


async def test_requests_go_to_all_in_turn_and_are_counted_together() -> None:
    async with (
        Cluster(decodes=2, config={"relays": 1}) as one,
        Cluster(beside=one, config={"relays": 1}) as two,
        new_session() as session,
    ):
        target = await discover(session, one.url, [two.url])
        assert target.urls == (one.url, two.url)
        await switch(session, target, {"decode": "round_robin"})
        found = await play(session, target, Workload("w", ITEMS), BenchLoad())
        check(found, len(ITEMS))
        for url in target.urls:
            state = await get_json(session, url + "/workers")
            assert state["policies"]["decode"] == "round_robin"
            done = {row["role"]: 0 for row in state["workers"]}
            for row in state["workers"]:
                done[row["role"]] += row["completed"]
            assert done == {"prefill": 6, "decode": 6}
        counted = requests_per_worker(found.before, found.after)
        assert counted is not None and sum(counted.values()) == 2 * len(ITEMS)


def test_what_any_router_says_of_a_worker_counts() -> None:
    def said(healthy: bool, failed: int, retried: int) -> dict[str, object]:
        row = {"name": "w", "healthy": healthy, "completed": 3, "failed": failed}
        return {"workers": [row], "retried": retried, "policies": {}}

    before = added_up([said(True, 0, 0), said(True, 0, 0)])
    assert not unhealthy(before, "then") and before["workers"][0]["completed"] == 6
    after = added_up([said(True, 0, 1), said(False, 2, 1)])
    assert unhealthy(after, "now") == ["worker w was unhealthy now"]
    assert lost_between(before, after) == [
        "worker w failed 2 request(s)", "2 request(s) had to be retried on another worker",
    ]  # fmt: skip
    assert added_up([said(True, 0, 0)]) == said(True, 0, 0)
