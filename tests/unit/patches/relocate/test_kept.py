"""The file with the last complete map, and the flags of the next start."""

import json
from pathlib import Path
from typing import Any

import pytest

from patches.relocate import kept
from toolkit.contract.variables import RELOCATE_VARIABLE


def test_a_map_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.experts.json"
    kept.write(path, [[1, 0, 2, 1], [0, 1, 2, 2]])
    assert json.loads(path.read_text()) == {"physical_to_logical_map": [[1, 0, 2, 1], [0, 1, 2, 2]]}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "argv",
    [
        ["--tp", "2"],
        ["--init-expert-location", "other.json", "--tp", "2"],
        ["--tp", "2", "--init-expert-location=other.json"],
    ],
)
def test_the_next_start_takes_it_in_place_of_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: Any
) -> None:
    path = tmp_path / "map.json"
    monkeypatch.setenv(RELOCATE_VARIABLE, str(path))
    assert kept.adopt(argv) == argv
    path.write_text("{}")
    assert kept.adopt(argv) == ["--tp", "2", kept.FLAG, str(path)]
    monkeypatch.setenv(RELOCATE_VARIABLE, "1")  # several machines
    assert kept.adopt(argv) == argv
