"""Kernel times put together to steps, and the distinct-expert term on top of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.simulate import costs
from toolkit.simulate.costs import aic
from toolkit.simulate.costs.aic import Aic, AicSpec
from toolkit.simulate.errors import SimulateError

SPEC = AicSpec(
    model="Qwen/Qwen3-30B-A3B", moe_layers=48, experts=128, top_k=8, kv_bytes=98_304, ep=1
)


class Kernels:
    """Attention reads KV, MoE takes 2 ms, everything else 1 ms and 10 us a request."""

    def __init__(self) -> None:
        self.asked = 0

    def decode_step_per_op(self, batch: int, length: int, _: int) -> Any:
        self.asked += 1
        kv_ms = batch * length * 1e-5
        return [
            ("generation_attention", kv_ms, 0.0, "silicon"),
            ("generation_moe", 2.0, 0.0, "silicon"),
            ("generation_qkv_gemm", 1.0 + 0.01 * batch, 0.0, "silicon"),
        ]

    def run_static_per_op(
        self, *, batch_size: int, isl: int, osl: int, prefix: int, mode: str
    ) -> Any:
        new = isl - prefix
        ops = [
            ("context_attention", new * (prefix + new / 2) * 1e-6, 0.0, "silicon"),
            ("context_moe", new * 1e-2, 0.0, "silicon"),
            ("context_qkv_gemm", 3.0, 0.0, "silicon"),
        ]
        return ops, []


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Aic:
    monkeypatch.setattr(aic, "_compile", lambda spec: Kernels())
    return Aic(SPEC)


def even(tokens: int) -> float:
    return 128 * (1 - (1 - 8 / 128) ** tokens)


def test_the_heaviest_rank_reads_the_fullest_one_multiplies(cost: Aic) -> None:
    seconds = cost.decode_s(np.array([2, 10, 0]), np.array([90_000, 10_000, 0]), 0.0)
    assert seconds == pytest.approx((0.9 + 2.0 + 1.1) / 1e3)


def test_a_step_is_slower_with_more_distinct_experts_as_published(cost: Aic) -> None:
    requests, kv = np.array([16]), np.array([16_000])
    rest = (0.16 + 1.16) / 1e3
    few, many = (cost.decode_s(requests, kv, 48 * d) - rest for d in (16, 128))
    assert many / few == pytest.approx(4.7, rel=0.01)
    assert cost.decode_s(requests, kv, 48 * even(16)) == pytest.approx(rest + 2e-3)


def test_a_step_is_asked_for_at_few_lengths(cost: Aic) -> None:
    """Between them attention is interpolated, which for a stand-in that grows evenly is exact."""
    for length in range(1, 40_000, 7):
        seconds = cost.decode_s(np.array([4]), np.array([4 * length]), 0.0)
        assert seconds == pytest.approx((4e-5 * length + 2.0 + 1.04) / 1e3)
    assert cost._engine.asked < 100


def test_the_longest_of_a_batch_counts_where_the_kernel_minds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aic, "_compile", lambda spec: Kernels())
    cost = Aic(SPEC.model_copy(update={"mixed": 1e-6, "mixed_most": 2.0}))
    batch = np.array([4, 4]), np.array([4000, 8000])
    even = cost.decode_s(*batch, 0.0)
    assert cost.decode_s(*batch, 0.0, np.array([1000, 2000])) == even
    more = cost.decode_s(*batch, 0.0, np.array([1000, 2050])) - even
    assert more == pytest.approx(50e-6)
    assert cost.decode_s(*batch, 0.0, np.array([1500, 2000])) - even == pytest.approx(
        (0.04 + 0.08 - 0.08) / 1e3
    ), "twice the attention of the first rank, which then takes longer than the second"
    assert costs.minds_lengths(cost) and costs.mixed_of(cost) == (1e-6, 2.0)
    assert not costs.minds_lengths(Aic(SPEC))


def test_a_dense_model_has_no_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aic, "_compile", lambda spec: Kernels())
    dense = Aic(AicSpec(model="dense", kv_bytes=98_304))
    batch = np.array([4]), np.array([4000])
    assert dense.decode_s(*batch, 100.0) == dense.decode_s(*batch, 0.0)
    with pytest.raises(ValueError, match="moe_layers, experts and top_k together"):
        AicSpec(model="half", kv_bytes=1, experts=8)


def test_prompts_of_a_pass_attend_apart_and_are_multiplied_together(cost: Aic) -> None:
    both = cost.prefill_s([(1000, 0), (500, 2000)])
    attention = (1000 * 500 + 500 * 2250) * 1e-6
    assert both == pytest.approx((attention + 15.0 + 3.0) / 1e3)


def test_kv_travels_at_the_lines_speed(cost: Aic) -> None:
    assert cost.transfer_s(1000) - cost.transfer_s(0) == pytest.approx(98_304_000 / 40e9)


def test_a_cost_file_can_name_a_model_and_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aic, "_compile", lambda spec: Kernels())
    path = tmp_path / "cost.yaml"
    text = "aic:\n  model: Qwen/Qwen3-30B-A3B\n  moe_layers: 48\n  experts: 128\n  top_k: 8\n"
    path.write_text(text + "  kv_bytes: 98304\n  system: h100_sxm\n")
    loaded = costs.load(str(path))
    assert isinstance(loaded, Aic) and loaded.spec.system == "h100_sxm"
    path.write_text(text)
    with pytest.raises(SimulateError, match="kv_bytes: Field required"):
        costs.load(str(path))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(SimulateError, match="pip install aiconfigurator-core"):
        Aic(SPEC)


def test_nvidias_own_data_has_the_models_that_are_promised() -> None:
    pytest.importorskip("aiconfigurator_core", reason="optional: pip install .[aic]")
    cost = Aic(SPEC)
    requests = np.array([64])
    short, long = (cost.decode_s(requests, np.array([64 * n]), 0.0) for n in (1000, 8000))
    assert 0.005 < short < long < 0.1
    with pytest.raises(SimulateError, match="has nothing for nobody/nothing"):
        Aic(SPEC.model_copy(update={"model": "nobody/nothing"}))
