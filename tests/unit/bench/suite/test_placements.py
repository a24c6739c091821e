"""Experts placed by the profile that a deployment names, and what is said where none can be."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.suite.placements import place_experts
from toolkit.settings.deployment import Deployment


def deployment(profile: str | None = "embedded", **decode: Any) -> Deployment:
    return Deployment.model_validate(
        {
            "name": "a",
            "device": "cpu",
            "model": "embedded",
            "decode": {"tp": 2, "ep": 2, **decode},
            "router": {"profile": profile} if profile else {},
        }
    )


def test_each_kind_is_a_file_that_sglang_loads_and_ours_cuts_hops(tmp_path: Path) -> None:
    found = place_experts(deployment(args={"ep_num_redundant_experts": 4}), tmp_path)
    assert not found.why and set(found.files) == {"eplb", "joint"}
    for file in found.files.values():
        rows = json.loads(Path(file).read_text())["physical_to_logical_map"]
        assert {len(row) for row in rows} == {48 + 4}
    load = {kind: even for kind, (even, _) in found.loads.items()}
    hops = {kind: cut for kind, (_, cut) in found.loads.items()}
    assert set(load) == {"linear", "eplb", "joint"} and min(load.values()) >= 1
    assert hops["joint"] < 0.9 * hops["eplb"] and load["eplb"] < load["linear"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (deployment(None), "no profile"),
        (deployment(ep=1), "one rank has all experts"),
        (deployment(args={"ep-num-redundant-experts": 3}), "no placement by"),
    ],
)
def test_where_none_can_be_made_it_says_why(given: Deployment, why: str, tmp_path: Path) -> None:
    found = place_experts(given, tmp_path)
    assert why in found.why and not found.files and not list(tmp_path.iterdir())
