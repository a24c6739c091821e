"""Models whose tokens use the experts that they are told to, and the batches that they are for."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import batches, routed_model, routing
from tests.gpu.batches import Batch
from tests.gpu.model import SCALED_UP, TINY
from tests.gpu.steps import classes, eldr


def uneven(rows: int, layers: int = 2, experts: int = 48) -> np.ndarray:
    """Each row has a third of the experts for itself."""
    found = np.full((rows, layers, experts), 0.01)
    third = experts // 3
    for row in range(rows):
        found[row, :, third * (row % 3) : third * (row % 3 + 1)] = 0.2
    return found


@pytest.mark.parametrize(("experts", "most"), [(128, 0.3), (48, 0.3), (16, 0.6)])
def test_a_token_uses_different_experts_and_mostly_those_of_its_row(
    experts: int, most: float
) -> None:
    found = routing.drawn(uneven(3), layers=4, experts=experts, used=2, tokens=64)
    assert found.ids.shape == (3, 64, 4, 2) and 0 <= found.ids.min() <= found.ids.max() < experts
    assert (found.ids[..., 0] != found.ids[..., 1]).all()
    rows = range(3)
    shares = [
        np.bincount(found.ids[row, :, 0].ravel(), minlength=experts) / found.ids[row, :, 0].size
        for row in rows
    ]
    alike = np.mean([np.minimum(shares[a], shares[b]).sum() for a in rows for b in rows if a < b])
    assert alike < most  # of few experts each stands for several of different rows
    assert found.distinct([0] * 24, range(24)) < found.distinct([0, 1, 2] * 8, range(24))


def test_distinct_experts_of_a_step_are_those_of_its_tokens() -> None:
    ids = np.array([[[[0, 1]], [[2, 3]]], [[[0, 1]], [[1, 4]]]], dtype=np.int16)
    own = routing.Routing(ids, 8)
    assert own.distinct([0, 1], [0, 0]) == 2
    assert own.distinct([0, 1], [1, 1]) == 4
    assert own.distinct([0, 1], [2, 3]) == 3


@pytest.mark.slow
def test_a_models_own_router_chooses_what_was_drawn_and_tokens_follow_in_order(
    tmp_path: Path,
) -> None:
    import torch
    from safetensors.torch import load_file

    own = routing.drawn(uneven(3), TINY.num_hidden_layers, TINY.num_experts, 2, 16)
    routed_model.make(tmp_path / "m", TINY, own, "cpu")
    files = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())["weight_map"]
    weights: dict[str, torch.Tensor] = {}
    for file in set(files.values()):
        weights |= load_file(tmp_path / "m" / file)
    embedding = weights["model.embed_tokens.weight"].float()
    for row, place in [(0, 0), (1, 7), (2, 15)]:
        seen = embedding[routed_model.token(own, row, place)]
        seen = seen / seen.square().mean().sqrt()
        for layer in range(TINY.num_hidden_layers):
            gate = weights[f"model.layers.{layer}.mlp.gate.weight"].float()
            chosen = (gate @ seen).topk(2).indices.tolist()
            assert sorted(chosen) == sorted(own.ids[row, place, layer].tolist())
        said = int((weights["lm_head.weight"].float() @ seen).argmax())
        assert said == routed_model.token(own, row, place + 1)
    before = (tmp_path / "m" / "size.json").stat().st_mtime_ns
    routed_model.make(tmp_path / "m", TINY, own, "cpu")
    assert (tmp_path / "m" / "size.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="tokens with experts of their own in 64 dimensions"):
        many = routing.drawn(uneven(9), TINY.num_hidden_layers, TINY.num_experts, 2, 16)
        routed_model.make(tmp_path / "n", TINY, many, "cpu")


@pytest.mark.slow
def test_batches_are_of_a_model_as_specialised_as_was_published() -> None:
    experts = batches.specialised(SCALED_UP)
    assert batches.fewer(experts, SCALED_UP) == pytest.approx(0.19, abs=0.02)
    found = batches.formed(experts, seeds=1, each=1)
    keys = {(batch.rate, batch.arm) for batch in found}
    assert keys == {(rate, arm) for rate in batches.RATES for arm in batches.ARMS}
    served = len(batches.chances(experts))
    for batch in found:
        assert len(batch.rows) == len(batch.kv_tokens) > 0
        assert 0 <= min(batch.rows) <= max(batch.rows) < served and min(batch.kv_tokens) > 1


def test_eldr_is_held_against_every_balancer_by_seed_and_token() -> None:
    def played(arm: str, seed: int, size: int, ms: float) -> eldr.Played:
        batch = Batch(40.0, arm, seed, (0,) * size, (9,) * size)
        return eldr.Played(batch, ms, 9.0 * size, drawn=2.0 * ms)

    rows = [
        played(arm, seed, size, ms * (2 if arm == "eldr" else 4))
        for arm in batches.ARMS
        for seed in range(3)
        for size, ms in ((1, 1.0), (3, 2.0))
    ]
    found = eldr.of_rate(rows)
    assert found["eldr"]["step_ms"] == pytest.approx(2 * (1 + 3 * 2) / 4)
    assert found["eldr"]["requests"] == pytest.approx((1 + 9) / 4)
    for arm in batches.ARMS[1:]:
        assert found["eldr"][f"step_ms_{arm}"] == pytest.approx(0.5)
        assert found["eldr"][f"requests_{arm}"] == pytest.approx(1.0)


def test_stops_are_held_against_the_best_chunk_and_the_one_that_costs_as_much() -> None:
    def rounds(ttft: float, rate: float) -> classes.Rounds:
        rows = {"ls_ttft_ms": [ttft] * 3, "be_rate": [rate] * 3, "be_turnaround_ms": [1.0] * 3}
        return classes.Rounds([ttft] * 6, rows)

    found = classes.held_against(
        {
            "classes@1024": rounds(20.0, 50.0),
            "classes@8192": rounds(80.0, 100.0),
            "preempt@4096": rounds(30.0, 99.0),
            "preempt@24576": rounds(10.0, 100.0),
        }
    )
    assert found["best_preempt"] == "preempt@24576" and found["best_classes"] == "classes@1024"
    assert found["equal_classes"] == "classes@8192" and found["latency_sensitive"] == 6
    assert (found["ttft_ratio"], found["rate_ratio"]) == pytest.approx((0.5, 2.0))
    assert (found["ttft_ratio_equal"], found["rate_ratio_equal"]) == pytest.approx((0.125, 1.0))
