"""Placing experts by a profile."""

import json
import math
from pathlib import Path

import pytest

from toolkit.profile.placing import EpConfig, write_placement
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.store import read
from toolkit.resources import profiles_dir

SHIPPED = profiles_dir() / "embedded"


@pytest.mark.slow
def test_drift_trades_balance_for_traffic(tmp_path: Path) -> None:
    built, arrays = read(SHIPPED)
    rows = []
    for drift in (0.0, 0.01, math.inf):
        path = tmp_path / f"{drift}.json"
        layout = EpConfig(2, 0, 2, drift)
        rows.append(write_placement(built, arrays, layout, "joint", path, 0, 10.0))
        assert len(json.loads(path.read_text())["physical_to_logical_map"]) == 6
    eplb = write_placement(built, arrays, EpConfig(2, 0, 2), "eplb", tmp_path / "e.json", 0, 10.0)
    assert rows[2].gpu_cut < 0.75 * eplb.gpu_cut
    assert rows[2].gpu_cut <= rows[1].gpu_cut <= eplb.gpu_cut


@pytest.mark.parametrize(
    ("layout", "kind", "words"),
    [
        (EpConfig(5, 0, 5), "joint", "do not divide"),
        (EpConfig(4, 0, 3), "joint", "nodes of 3"),
        (EpConfig(2, 2, 2), "gimbal", "no redundant experts"),
        (EpConfig(2, 0, 2), "best", "unknown placement 'best'"),
        (EpConfig(2, 0, 2), "joint@1", "unknown placement 'joint@1'"),
        (EpConfig(2, 0, 2), "gimbal@2", "anchor GPU 2"),
        (EpConfig(2, 0, 2), "gimbal@0:x", "no ANCHOR:SIGMAS"),
        (EpConfig(2, 0, 2, -1.0), "joint", "drift"),
        (EpConfig(0, 0, 0), "eplb", "EP size 0"),
    ],
)
def test_what_cannot_be_placed(tmp_path: Path, layout: EpConfig, kind: str, words: str) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ProfileError, match=words):
        write_placement(*read(SHIPPED), layout, kind, path, 0, 10.0)
    assert not path.exists()


def test_gimbals_anchor_can_be_given(tmp_path: Path) -> None:
    held = []
    for kind in ("gimbal@0:0.5", "gimbal@1:0.5"):
        row = write_placement(*read(SHIPPED), EpConfig(2, 0, 2), kind, tmp_path / "x.json", 0, 10.0)
        assert row.kind == "gimbal"
        held.append((tmp_path / "x.json").read_text())
    assert held[0] != held[1]


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot write"):
        write_placement(
            *read(SHIPPED), EpConfig(2, 0, 2), "linear", tmp_path / "none" / "x.json", 0, 10.0
        )
