"""Moves that are wanted and cannot be: said before a start."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.stand_ins import deployment, tiny_model
from toolkit.contract.direct_moves import FIELDS
from toolkit.launch.checks.moving import moving
from toolkit.launch.errors import Problem
from toolkit.launch.resolve import resolve

FREE: dict[str, Any] = dict.fromkeys(FIELDS) | {
    "disaggregation_transfer_backend": "mooncake",
    "pp_size": 1,
}
WANTED: dict[str, Any] = {"rebalance": True}
IN_THE_WAY: list[tuple[dict[str, Any], str]] = [
    ({"disaggregation_transfer_backend": "nixl"}, "only Mooncake"),
    ({"pp_size": 2}, "pipeline or context parallelism"),
    ({"attn_cp_size": 2}, "pipeline or context parallelism"),
    ({"dcp_size": 2}, "pipeline or context parallelism"),
    ({"enable_hisparse": True}, "kept elsewhere"),
    ({"disaggregation_decode_enable_offload_kvcache": True}, "kept elsewhere"),
    ({"disaggregation_decode_enable_radix_cache": True}, "a prefix cache on decode"),
    ({"disaggregation_enable_kv_checksum": True}, "checksums"),
    ({"enable_pd_role_switch": True}, "roles that change"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def said(model: Path, router: dict[str, Any], flags: dict[str, Any]) -> list[Problem]:
    plan = resolve(deployment(model, decode={"replicas": 2}, router=router))
    resolved = {"prefill-0": FREE, "decode-0": FREE | flags, "decode-1": FREE | flags}
    return moving(plan, resolved)


@pytest.mark.parametrize(("flags", "why"), IN_THE_WAY)
def test_what_keeps_kv_from_moving_is_said(model: Path, flags: dict[str, Any], why: str) -> None:
    (note,) = said(model, WANTED, flags)
    assert not note.fatal and why in note.what and "from their tokens" in note.what
    (refused,) = said(model, {"moves": "direct"}, flags)
    assert refused.fatal and why in refused.what and refused.where == "router.moves"


@pytest.mark.parametrize(
    "router", [{}, {"rebalance": {"on": False}}, {"rebalance": True, "moves": "replay"}]
)
def test_where_nobody_wants_it_nothing_is_said(model: Path, router: dict[str, Any]) -> None:
    assert said(model, router, {"disaggregation_decode_enable_radix_cache": True}) == []


@pytest.mark.parametrize("router", [WANTED, {"moves": "direct"}])
def test_where_nothing_is_in_the_way_nothing_is_said(model: Path, router: dict[str, Any]) -> None:
    assert said(model, router, {}) == []


def test_flags_that_sglang_refused_are_not_judged(model: Path) -> None:
    plan = resolve(deployment(model, router=WANTED))
    assert moving(plan, {"decode-0": {}}) == moving(plan, {}) == []


def test_a_model_with_a_state_beside_its_kv_moves_in_no_way(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    layers = ["linear_attention"] * config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": layers}))
    (note,) = said(folder, WANTED, {})
    assert not note.fatal and "nothing moves" in note.what
