"""Prefill and decode must agree on the shape of KV."""

from pathlib import Path

import pytest

from tests.unit.launch.stand_ins import deployment, tiny_model
from toolkit.launch.checks.agreement import agreement
from toolkit.launch.resolve import resolve

SAME = {"page_size": 1, "dtype": "float32", "kv_cache_dtype": "auto", "max_total_tokens": 100}


def test_equal_roles_have_no_problem(tmp_path: Path) -> None:
    plan = resolve(deployment(tiny_model(tmp_path)))
    assert agreement(plan, {w.name: SAME for w in plan.workers}) == []


@pytest.mark.parametrize("key", ["page_size", "dtype", "kv_cache_dtype"])
def test_a_difference_is_named(tmp_path: Path, key: str) -> None:
    plan = resolve(deployment(tiny_model(tmp_path)))
    other = SAME | {key: "other"}
    (problem,) = agreement(plan, {"prefill-0": SAME, "decode-0": other})
    assert (
        problem.fatal
        and "'other'" in problem.what
        and f"--{key.replace('_', '-')}" in problem.repair
    )


def test_tp_layouts(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    uneven = resolve(deployment(model, decode={"tp": 2}))
    (problem,) = agreement(uneven, {})
    assert problem.fatal
    on_gpu = resolve(deployment(model, device="cuda", decode={"tp": 2}))
    (note,) = agreement(on_gpu, {})
    assert not note.fatal
    attention = resolve(deployment(model, decode={"tp": 2, "dp": 2, "dp_attention": True}))
    assert agreement(attention, {}) == []


def test_ranks_of_context_parallelism_split_no_heads(tmp_path: Path) -> None:
    plan = resolve(deployment(tiny_model(tmp_path), prefill={"tp": 2}))
    assert agreement(plan, {"prefill-0": {"attn_cp_size": 2}, "decode-0": {}}) == []
    (problem,) = agreement(plan, {"prefill-0": {"attn_cp_size": 1}, "decode-0": {}})
    assert "over 2 ranks on prefill" in problem.what


def test_small_kv_budget_is_a_note(tmp_path: Path) -> None:
    plan = resolve(deployment(tiny_model(tmp_path)))
    (note,) = agreement(plan, {"prefill-0": SAME | {"context_length": 200}, "decode-0": SAME})
    assert not note.fatal and "kv_tokens" in note.repair
