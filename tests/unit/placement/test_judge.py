"""The judge against tokens followed one by one, and replica picks against SGLang's own code."""

from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.placement.cases import Case, cases, routed
from toolkit.placement import (
    Placement,
    StepCost,
    Topology,
    Traffic,
    count,
    joint,
    judge,
    least_crossing,
    linear,
)
from toolkit.placement.dispatch import picks

needs_sglang = pytest.mark.skipif(not find_spec("sglang"), reason="compares with SGLang")


def replicated() -> Placement:
    """6 experts in 3 layers on 4 GPUs; one to three replicas."""
    rows = [
        [0, 1, 2, 3, 4, 5, 0, 0],
        [5, 0, 1, 0, 2, 0, 3, 4],
        [0, 1, 0, 2, 3, 1, 4, 5],
    ]
    return Placement(np.array(rows), 6, 4)


def test_without_replicas_it_is_counting() -> None:
    ids = routed(3, 8, 2, 0, 300)
    topology, placement = Topology(4, 2), linear(3, 8, Topology(4))
    judgement = judge(placement, topology, ids)
    gpu = ids // 2
    node = gpu // 2
    for place, cross, fan in (
        (gpu, judgement.cross_gpu, judgement.fan_gpus),
        (node, judgement.cross_node, judgement.fan_nodes),
    ):
        hops = place[:, :-1, :, None] != place[:, 1:, None, :]
        np.testing.assert_allclose(cross, hops.mean(axis=(0, 2, 3)), atol=1e-6)
        distinct = [[len(set(row.tolist())) for row in token] for token in place]
        np.testing.assert_allclose(fan, np.mean(distinct, axis=0), atol=1e-6)  # type: ignore[arg-type]
    loads = np.stack([np.bincount(gpu[:, layer].ravel(), minlength=4) for layer in range(3)])
    np.testing.assert_allclose(judgement.balance, loads.max(axis=1) / loads.mean(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["random", "row", "nearest"])
def test_expectations_are_what_many_draws_give(dispatch: str) -> None:
    """Tokens sent one by one through replicas that are picked as the mode has it."""
    rng = np.random.default_rng(1)
    placement, topology = replicated(), Topology(4, 2)
    ids = routed(3, 6, 2, 1, 4000)
    judgement = judge(placement, topology, ids, dispatch=dispatch)  # type: ignore[arg-type]
    where = [
        [np.flatnonzero(placement.physical_to_logical[layer] == e) // 2 for e in range(6)]
        for layer in range(3)
    ]

    def pick(layer: int, expert: int, row: int, home: int) -> int:
        found = where[layer][expert]
        if dispatch == "row":
            return int(found[row % len(found)])
        if dispatch == "nearest":
            if home in found:
                return home
            near = [g for g in found if g // 2 == home // 2]
            if 0 < len(near) < len(found):
                return int(near[0])
        return int(rng.choice(found))

    draws = 12
    gpu = np.empty((draws, *ids.shape), int)
    for draw, token in product(range(draws), range(len(ids))):
        row, home = rng.integers(0, 12 * 5), rng.integers(0, 4)
        for layer, at in product(range(3), range(2)):
            gpu[draw, token, layer, at] = pick(layer, ids[token, layer, at], row, home)  # type: ignore[arg-type]
    hops = gpu[:, :, :-1, :, None] != gpu[:, :, 1:, None, :]
    np.testing.assert_allclose(judgement.cross_gpu, hops.mean(axis=(0, 1, 3, 4)), atol=0.012)
    apart = gpu[..., 0] != gpu[..., 1]
    np.testing.assert_allclose(judgement.fan_gpus, 1 + apart.mean(axis=(0, 1)), atol=0.03)  # type: ignore[arg-type]
    loads = np.stack([np.bincount(gpu[:, :, layer].ravel(), minlength=4) for layer in range(3)])
    np.testing.assert_allclose(judgement.balance, loads.max(axis=1) / loads.mean(axis=1), atol=0.03)


@needs_sglang
def test_nearest_is_sglangs_choice() -> None:
    from toolkit.placement.eplb import _sglang

    _sglang()  # makes it importable
    from sglang.srt.eplb.expert_location import _find_nearest_expert

    # In the second, both replicas of expert 0 lie on one node: being near narrows nothing there.
    wide = Placement(np.array([[0, 0, 1, 2, 3, 4]]), 5, 6)
    for placement, topology in ((replicated(), Topology(4, 2)), (wide, Topology(6, 3))):
        slots, per_node = placement.slots, topology.gpus_per_node
        for home, share in enumerate(picks(placement, topology, "nearest")):
            for layer, expert in product(range(placement.layers), range(placement.experts)):
                held = np.flatnonzero(placement.physical_to_logical[layer] == expert).tolist()
                slot = _find_nearest_expert(held, slots, home, per_node, slots * per_node)
                gpus = [s // slots for s in (held if slot == -1 else [slot])]
                wanted = np.bincount(gpus, minlength=topology.gpus) / len(gpus)
                np.testing.assert_allclose(share[layer, expert], wanted)


@needs_sglang
def test_row_is_sglangs_choice() -> None:
    from toolkit.placement.eplb import _sglang

    _sglang()
    import torch
    from sglang.srt.eplb.expert_location_dispatch import (
        ExpertLocationDispatchInfo,
        topk_ids_logical_to_physical,
    )

    placement = replicated()
    shares = list(picks(placement, Topology(4), "row"))
    assert len(shares) == 6  # least common multiple of 1, 2 and 3
    for layer in range(3):
        slots = [np.flatnonzero(placement.physical_to_logical[layer] == e) for e in range(6)]
        table = torch.full((6, 8), -1)
        for expert, found in enumerate(slots):
            table[expert, : len(found)] = torch.from_numpy(found)
        valid = torch.tensor([len(found) for found in slots])
        info = ExpertLocationDispatchInfo("dynamic", None, table, valid, 8, rank_invariant=True)
        ids = torch.arange(6).repeat(24, 1)
        gpu = topk_ids_logical_to_physical(ids, info) // 2
        for row in range(24):
            wanted = shares[row % 6][layer].argmax(axis=1)
            assert gpu[row].tolist() == wanted.tolist()


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.sampled_from(["random", "row", "nearest"]))
def test_shares_add_up_and_follow_the_replicas(case: Case, dispatch: str) -> None:
    placement = joint(case.traffic, case.topology, case.redundant)
    for share in picks(placement, case.topology, dispatch):  # type: ignore[arg-type]
        np.testing.assert_allclose(share.sum(axis=2), 1, atol=1e-5)
        assert not share[placement.held() == 0].any()


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(cases())
def test_no_placement_beats_the_floor(case: Case) -> None:
    placement = joint(case.traffic, case.topology, case.redundant)
    crossing = judge(placement, case.topology, case.traffic).cross_gpu
    used = case.traffic.affinity.sum(axis=(1, 2)) > 0
    if used.any():
        floor = least_crossing(case.traffic, placement.slots)
        assert floor <= crossing[used].mean() + 1e-5


def test_the_floor_is_reached_where_blocks_fit() -> None:
    block = np.kron(np.eye(4), np.ones((2, 2)))
    traffic = Traffic(np.ones((3, 8)), np.stack([block, block]))
    assert least_crossing(traffic, 2) == 0
    assert least_crossing(traffic, 1) == 0.5
    assert judge(linear(3, 8, Topology(4)), Topology(4), traffic).cross_gpu.tolist() == [0, 0]


def test_step_time_adds_its_terms() -> None:
    ids = routed(3, 8, 2, 0, 200)
    cost = StepCost(load=2.0, gpu=0.25, node=3.0)
    judgement = judge(linear(3, 8, Topology(4)), Topology(4, 2), count(ids, 8), step=cost)
    assert judgement.step[0] == pytest.approx(2 * judgement.balance[0])
    assert judgement.step[1] == pytest.approx(
        2 * judgement.balance[1]
        + 0.25 * (judgement.cross_gpu[0] - judgement.cross_node[0])
        + 3 * judgement.cross_node[0]
    )
    assert judgement.fan_gpus is None
    assert judgement.summary()["fan_nodes"] is None
