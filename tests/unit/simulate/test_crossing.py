"""All-to-all in simulated steps."""

import numpy as np
import pytest
from pydantic import ValidationError

from toolkit.placement import Placement, Topology, linear, sent
from toolkit.signatures.space import SignatureSpace
from toolkit.simulate.costs import links_of
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.costs.links import Link, Links, Work, deepep
from toolkit.simulate.crossing import Crossing, crossing_of
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.maps import maps_of
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation

LINK = Link(base=1.0, per_node_byte=1.0, per_byte=10.0, element_bytes=1.0)
LINKS = Links(hidden=1, gpus_per_node=2, dispatch=LINK, combine=LINK)


def certain(experts: list[list[int]], count: int = 8) -> SimulatedExperts:
    """Rows whose tokens always use the same experts, one layer."""
    counts = np.zeros((len(experts), 1, count))
    for row, used in enumerate(experts):
        counts[row, 0, used] = 10
    return SimulatedExperts(counts, np.full(len(experts), 10))


def test_it_is_what_the_placement_sends() -> None:
    placement = Placement(np.array([[0, 1, 2, 3, 4, 5, 6, 7]]), 8, 4)
    topology, used = Topology(4, 2), [[0, 1], [0, 7], [3, 4], [6, 7]]
    crossing = Crossing(certain(used).placed(placement), LINKS, 4)
    batch = [(0, 0), (0, 1), (1, 2), (3, 3), (2, 0)]
    for rank, row in batch:
        crossing.add(rank, row)
    ids = np.array([[used[row]] for _, row in batch])
    found = sent(placement, topology, ids, np.array([rank for rank, _ in batch]))
    expected = LINKS.seconds(found.sent, found.received).sum()
    assert crossing.seconds() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("ranks", [4, 2])
def test_replicas_are_the_nearest_ones_where_the_server_has_it_so(ranks: int) -> None:
    # Expert 0 lies on both nodes, expert 7 twice on the second.
    placement = Placement(np.array([[0, 1, 2, 3, 4, 5, 0, 6, 7, 7, 2, 1]]), 8, 4)
    topology, used = Topology(4, 2), [[0, 1], [2, 7], [0, 5]]
    links = LINKS.model_copy(update={"replicas": "nearest"})
    crossing = Crossing(certain(used).placed(placement), links, ranks)
    batch = [(0, 0), (0, 1), (1, 2), (ranks - 1, 0)]
    for rank, row in batch:
        crossing.add(rank, row)
    own = 4 // ranks
    ids = np.array([[used[row]] for _, row in batch for _ in range(own)])
    home = np.array([rank * own + each for rank, _ in batch for each in range(own)])
    found = sent(placement, topology, ids, home, dispatch="nearest")
    if own > 1:  # a token is half on each of its rank's GPUs, and goes to either for nothing
        assert crossing.seconds() < LINKS.seconds(found.sent / own, found.received / own).sum()
        return
    assert crossing.seconds() == pytest.approx(
        LINKS.seconds(found.sent, found.received).sum(), rel=1e-4
    )
    crossing.remove(0, 1)
    crossing.add(0, 1)
    assert crossing.seconds() == pytest.approx(
        LINKS.seconds(found.sent, found.received).sum(), rel=1e-4
    )


def test_work_waits_for_the_busiest_gpu() -> None:
    links = LINKS.model_copy(update={"work": Work(least=3.0, per_pair=2.0)})
    placed = certain([[0, 1], [0, 7]]).placed(linear(1, 8, Topology(4)))
    with_work, without = Crossing(placed, links, 4), Crossing(placed, LINKS, 4)
    assert with_work.seconds() - without.seconds() == 3.0
    for rank, row in ((0, 0), (0, 1), (1, 0)):
        with_work.add(rank, row)
        without.add(rank, row)
    # GPU 0 has experts 0 and 1: five of the six pairs.
    assert with_work.seconds() - without.seconds() == pytest.approx(10.0, rel=1e-4)


def test_who_leaves_takes_everything_along() -> None:
    experts = SimulatedExperts(np.random.default_rng(0).integers(0, 9, (5, 3, 8)), np.full(5, 10))
    crossing = Crossing(experts.placed(linear(3, 8, Topology(4))), LINKS, 2)
    idle = crossing.seconds()
    assert idle == 6.0  # three layers, both directions: the base alone
    for rank, row in ((0, 1), (1, 4), (0, 1)):
        crossing.add(rank, row)
    assert crossing.seconds() > idle
    for rank, row in ((0, 1), (0, 1), (1, 4)):
        crossing.remove(rank, row)
    assert crossing.seconds() == idle


def test_a_rank_s_own_gpus_cost_nothing() -> None:
    crossing = Crossing(certain([[0, 1, 2, 3]]).placed(linear(1, 8, Topology(4))), LINKS, 2)
    crossing.add(0, 0)  # ranks of two GPUs: experts 0 to 3 are its own
    assert crossing.seconds() == 2.0
    crossing.add(1, 0)
    assert crossing.seconds() > 2.0


def test_only_placed_experts_of_several_ranks_cross() -> None:
    experts = certain([[0, 1]])
    placed = experts.placed(linear(1, 8, Topology(4)))
    assert crossing_of(None, LINKS, 4) is None
    assert crossing_of(experts, LINKS, 4) is None
    assert crossing_of(placed, None, 4) is None
    assert crossing_of(placed, LINKS, 1) is None
    assert crossing_of(placed, LINKS, 4) is not None
    with pytest.raises(SimulateError, match="do not divide"):
        crossing_of(placed, LINKS, 3)


def cost(**more: object) -> Linear:
    known = {"decode": Decode(base=0.01), "prefill": Prefill(base=0.01, per_token=0)}
    return Linear.model_validate(known | more)


def test_costs_name_their_links() -> None:
    assert links_of(cost()) is None
    assert links_of(cost(links="deepep")) == deepep()
    assert links_of(cost(links=LINKS.model_dump())) == LINKS
    with pytest.raises(ValidationError):
        cost(links="infiniband")


def tpot(experts: SimulatedExperts, **more: object) -> float:
    """Mean, of four requests at a time on four ranks."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=4),
        decode=DecodeFleet(dp=4, dp_attention=True, slots=4, kv_tokens=100_000),
        router=RouterFleet(decode_policy="round_robin"),
    )
    requests = [Request(n, 0.0, prompt=50, output=40, row=0) for n in range(4)]
    result = Simulation(fleet, cost(**more), requests, experts, 0).run().result()
    return float(result["tpot_mean"])


def test_a_simulated_step_takes_longer_by_what_crosses() -> None:
    experts = certain([[6, 7]]).placed(linear(1, 8, Topology(4)))
    slow = Link(base=0.0, per_byte=0.001, element_bytes=1.0)
    links = Links(hidden=1, gpus_per_node=2, dispatch=slow, combine=slow)
    # GPU 3 receives both experts' pairs of the two ranks on the other node, both ways.
    more = tpot(experts, links=links) - tpot(experts)
    assert more == pytest.approx(2 * 0.001 * 4, rel=0.02)


def located(policy: str, links: Links | None) -> tuple[set[tuple[int, int]], int]:
    """(row, DP rank) of requests of two kinds, whose experts lie on two nodes; decisions by map."""
    used = [[0, 1], [6, 7]]
    counts = np.zeros((2, 1, 8))
    for row, each in enumerate(used):
        counts[row, 0, each] = 10
    space = SignatureSpace(np.ones((1, 8), np.float32), (0,))
    experts = SimulatedExperts(counts, np.full(2, 10), counts, space).placed(
        linear(1, 8, Topology(4))
    )
    fleet = Fleet(
        prefill=PrefillFleet(replicas=4),
        decode=DecodeFleet(dp=4, dp_attention=True, slots=8, kv_tokens=100_000),
        router=RouterFleet(decode_policy=policy),
    )
    requests = [Request(n, n * 0.02, prompt=50, output=40, row=n % 2) for n in range(24)]
    model = cost(links=links) if links else cost()
    run = Simulation(fleet, model, requests, experts, 0)
    run.run()
    rank_views = {(request.row, request.place[1]) for request in requests if request.place}
    locality = run.router.decode_policy.locality
    return rank_views, locality.counters.mapped if locality else 0


@pytest.mark.parametrize("policy", ["eldr", "composed"])
def test_the_router_has_the_map_where_crossing_costs(policy: str) -> None:
    rank_views, mapped = located(policy, LINKS)
    assert mapped == 24
    # Both experts of a row lie on one GPU; nobody else's queue is so much shorter.
    assert {rank // 2 for row, rank in rank_views if row == 0} == {0}
    assert {rank // 2 for row, rank in rank_views if row == 1} == {1}
    rank_views, mapped = located(policy, None)
    assert mapped == 0
    assert {rank // 2 for row, rank in rank_views if row == 0} == {0, 1}


def test_no_map_where_a_rank_lies_on_two_nodes_or_nothing_crosses() -> None:
    counts = np.ones((2, 1, 8))
    space = SignatureSpace(np.ones((1, 8), np.float32), (0,))
    unplaced = SimulatedExperts(counts, np.full(2, 10), counts, space)
    placed = unplaced.placed(linear(1, 8, Topology(4)))
    assert list(maps_of(placed, LINKS, ["a", "b"], 4)) == ["a", "b"]
    assert list(maps_of(placed, LINKS, ["a"], 2)) == ["a"]
    narrow = LINKS.model_copy(update={"gpus_per_node": 1})
    assert maps_of(placed, narrow, ["a"], 2) == {}
    for experts, links, ranks in (
        (unplaced, LINKS, 4),
        (placed, None, 4),
        (placed, LINKS, 1),
        (placed, LINKS, 3),
        (certain([[0]]).placed(linear(1, 8, Topology(4))), LINKS, 4),
    ):
        assert maps_of(experts, links, ["a"], ranks) == {}
