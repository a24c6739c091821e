"""What a map says of a request against what the layer would send for its tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.placement.cases import Case, cases
from toolkit.placement import Topology, joint, linear, sent
from toolkit.placement.rank_map import rank_map
from toolkit.policies.support.expert_map import OWN, ExpertMap
from toolkit.signatures.space import SignatureSpace


@settings(max_examples=examples(30))
@given(cases(), st.integers(0, 2**32), st.sampled_from(["nearest", "random"]))
def test_shares_are_those_of_what_is_sent(case: Case, seed: int, dispatch: str) -> None:
    placement = joint(case.traffic, case.topology, case.redundant)
    rng = np.random.default_rng(seed)
    layers, experts = placement.layers, placement.experts
    k = min(2, experts)
    ids = np.stack([rng.permutation(experts)[:k] for _ in range(30 * layers)])
    ids = ids.reshape(30, layers, k)
    counts = np.zeros((layers, experts))
    np.add.at(counts, (np.arange(layers)[None, :, None], ids), 1)
    space = SignatureSpace(rng.uniform(0.1, 3, (layers, experts)), tuple(range(layers)))  # type: ignore[arg-type]
    found = rank_map(placement, case.topology, space, dispatch=dispatch)  # type: ignore[arg-type]
    shares = found.shares(space.signature(counts))
    assert shares is not None
    for rank in range(case.topology.gpus):
        own, node, _ = sent(
            placement,
            case.topology,
            ids,
            np.full(30, rank),
            dispatch=dispatch,  # type: ignore[arg-type]
        ).shares
        assert shares[rank] == pytest.approx((1 - OWN) * (own + node) + OWN * own, abs=1e-3)


def test_a_rank_of_several_gpus_has_all_their_experts() -> None:
    topology = Topology(8, 4)
    placement = linear(1, 8, topology)
    space = SignatureSpace(np.ones((1, 8)), (0,))  # type: ignore[arg-type]
    counts = np.zeros((1, 8))
    counts[0, [0, 1, 4]] = 1
    shares = rank_map(placement, topology, space, ranks=4).shares(space.signature(counts))
    node, other = (1 - OWN) * 2 / 3, (1 - OWN) / 3
    np.testing.assert_allclose(
        shares,  # type: ignore[arg-type]
        [node + OWN * 2 / 3, node, other + OWN / 3, other],  # type: ignore[arg-type]
        rtol=1e-4,
    )


def test_only_the_signature_s_layers_count() -> None:
    topology = Topology(2, 1)
    space = SignatureSpace(np.ones((3, 2)), (2, 0))  # type: ignore[arg-type]
    found = rank_map(linear(3, 2, topology), topology, space)
    counts = np.array([[1, 0], [0, 9], [1, 0]])
    np.testing.assert_allclose(found.shares(space.signature(counts)), [1, 0], atol=1e-6)  # type: ignore[arg-type]


def test_what_every_request_uses_does_not_count() -> None:
    topology = Topology(2, 1)
    space = SignatureSpace(np.array([[0.0, 1.0]]), (0,))
    found = rank_map(linear(1, 2, topology), topology, space)
    np.testing.assert_allclose(found.shares(space.signature(np.array([[9, 1]]))), [0, 1])  # type: ignore[arg-type]
    assert found.shares(np.zeros(2, np.float32)) is None


def test_a_map_survives_json() -> None:
    topology = Topology(4, 2)
    space = SignatureSpace(np.ones((2, 8)), (0, 1))  # type: ignore[arg-type]
    found = rank_map(linear(2, 8, topology), topology, space)
    signature = space.signature(np.arange(16).reshape(2, 8))
    again = ExpertMap.of_plain(found.plain())
    np.testing.assert_array_equal(again.shares(signature), found.shares(signature))


@pytest.mark.parametrize(
    ("weights", "topology", "options", "message"),
    [
        ((3, 8), Topology(4, 2), {}, "another model"),
        ((2, 8), Topology(8, 2), {}, "for 4 GPUs"),
        ((2, 8), Topology(4, 2), {"ranks": 3}, "do not divide"),
        ((2, 8), Topology(4, 2), {"ranks": 1}, "do not divide"),
        ((2, 8), Topology(4, 2), {"dispatch": "row"}, "no home ranks"),
    ],
)
def test_what_does_not_fit_is_named(
    weights: Any, topology: Any, options: Any, message: str
) -> None:
    space = SignatureSpace(np.ones(weights), (0,))
    with pytest.raises(ValueError, match=message):
        rank_map(linear(2, 8, Topology(4)), topology, space, **options)
