"""Several routers over the same simulated workers."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.simulate.fleets import COST, fleet, requests
from toolkit.policies.base import Load
from toolkit.simulate.fleet import RouterFleet
from toolkit.simulate.simulation import Simulation


def several(routers: int, policy: str = "shortest_queue", parked: int = 12) -> Simulation:
    router = {
        "decode_policy": policy, "parked_per_prefill": parked, "report_s": 0.02, "routers": routers,
    }  # fmt: skip
    made = fleet({"replicas": 4}, router, {"replicas": 2, "chunk": 512})
    return Simulation(made, COST, requests(200, 60.0), seed=1)


def test_requests_come_to_each_router_in_turn_and_end_there() -> None:
    simulation = several(3)
    told: list[list[int]] = [[] for _ in simulation.routers]
    for heard, router in zip(told, simulation.routers, strict=True):
        ended = router.ended
        router.ended = lambda request, h=heard, e=ended: (h.append(request.number), e(request))  # type: ignore[method-assign,misc,assignment]
    assert simulation.run().ended == 200
    assert [sorted(numbers) for numbers in told] == [list(range(n, 200, 3)) for n in range(3)]


def test_what_a_rank_says_of_its_load_counts_the_requests_of_all_routers() -> None:
    simulation = several(2)
    seen: list[tuple[Load, ...]] = []

    def look() -> None:
        loads = [[state.load(0.0) for state in r.rank_states] for r in simulation.routers]
        seen.extend(zip(*loads, strict=True))

    for n in range(1, 40):
        simulation.events.at(0.02 * n + 1e-6, look)  # workers have just said it
    simulation.run()
    held = [[(load.running, load.waiting, load.used_tokens) for load in both] for both in seen]
    assert all(one == other for one, other in held)
    own = [[load.sent_requests for load in both] for both in seen]
    assert any(one != other for one, other in own) or max(map(max, own)) == 0
    assert max(one[0] + one[1] for one, _ in held) > 2


@pytest.mark.parametrize("routers", [2, 4])
def test_parked_prefills_are_shared_out(routers: int) -> None:
    simulation = several(routers, "level", parked=12)
    for router in simulation.routers:
        left = [rank.credit for rank in router.decider.ranks.of("prefill")]
        assert left == [12 // routers] * 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"routers": 2}, "give report_s"),
        ({"routers": 9, "report_s": 0.02, "parked_per_prefill": 8}, "cannot share 8 parked"),
        ({"routers": 0}, "greater than or equal to 1"),
    ],
)
def test_several_routers_need_what_they_share(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RouterFleet(**wrong)


def test_one_router_of_several_is_as_good_as_one_where_nobody_else_has_requests() -> None:
    def answers(routers: int) -> list[float]:
        simulation = several(routers)
        simulation._requests = iter(list(requests(1)))
        result = simulation.run().result()
        return [result["ttft_p99"], result["tpot_p99"], result["requests"]]

    assert answers(1) == answers(3)
