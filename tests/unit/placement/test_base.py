"""Placements: the map SGLang loads, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.placement.cases import Case, cases
from toolkit.placement import Placement, Topology, from_gpus, from_sglang, load_placement, place

ROW = [0, 1, 2, 3, 1, 0]


def test_slots_lie_on_gpus_as_sglang_has_it() -> None:
    placement = Placement(np.array([[0, 1, 2, 2]]), 3, 2)
    assert placement.held()[0].tolist() == [[1, 0], [1, 0], [0, 2]]
    assert placement.replicas().tolist() == [[1, 1, 2]]
    assert (placement.slots, placement.redundant, placement.twins()) == (2, 1, 1)
    assert placement.to_sglang() == {"physical_to_logical_map": [[0, 1, 2, 2]]}


@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.sampled_from(["eplb", "linear"]))
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, case: Case, name: str) -> None:
    placement = place(name, case.traffic, case.topology, case.redundant)
    path = tmp_path_factory.mktemp("location") / "x.json"
    placement.save(path)
    back = load_placement(path, case.traffic.experts, case.topology.gpus)
    assert (back.physical_to_logical == placement.physical_to_logical).all()
    assert [part.name for part in path.parent.iterdir()] == ["x.json"]


def test_dense_layers_are_filled_in_and_left_out_again() -> None:
    placement = Placement(np.array([[3, 2, 1, 0], [1, 0, 3, 2]]), 4, 2)
    data = placement.to_sglang(rows=[1, 3], hidden_layers=4)
    assert data["physical_to_logical_map"] == [
        [0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3], [1, 0, 3, 2],
    ]  # fmt: skip
    back = from_sglang(json.loads(json.dumps(data)), 4, 2, rows=[1, 3])
    assert (back.physical_to_logical == placement.physical_to_logical).all()


@pytest.mark.parametrize("rows", [[1], [3, 1], [1, 4], [-1, 2], [1, 1]])
def test_wrong_places_for_moe_layers(rows: list[int]) -> None:
    placement = Placement(np.array([[3, 2, 1, 0], [1, 0, 3, 2]]), 4, 2)
    with pytest.raises(ValueError, match="rising places among 4"):
        placement.to_sglang(rows=rows, hidden_layers=4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([ROW], "no 'physical_to_logical_map'"),
        ({"logical_count": [[1]]}, "it has: logical_count"),
        ({"physical_to_logical_map": 3}, "list of layers"),
        ({"physical_to_logical_map": [ROW, ROW[:-1]]}, "layers of 5, 6 slots"),
        ({"physical_to_logical_map": []}, "no slots"),
        ({"physical_to_logical_map": [[0, 1, 2, 3, 1, 0.5]]}, "whole number"),
        ({"physical_to_logical_map": [[0, 1, 2, 3, 1, True]]}, "whole number"),
        ({"physical_to_logical_map": [[0, 1, 2, 2, 1, 0]]}, "no slot for expert 3"),
        ({"physical_to_logical_map": [[0, 1, 2, 4, 1, 0]]}, "another model"),
        ({"physical_to_logical_map": [[0, 1, 2]]}, "another model"),
        ({"physical_to_logical_map": [[0, 1, 2, 3, 1]]}, "do not divide over 2 GPUs"),
    ],
)
def test_a_map_edited_by_hand_is_refused(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_sglang(data, 4, 2)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_text('{"physical_to_logical_map": [[0,')
    with pytest.raises(ValueError, match=r"half\.json"):
        load_placement(path, 4, 2)


def test_uneven_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        from_gpus([[0, 0, 0, 1]], [[0, 1, 2, 3]], 4, 2)


def test_the_array_cannot_be_changed_afterwards() -> None:
    placement = place_linear()
    with pytest.raises(ValueError, match="read-only"):
        placement.physical_to_logical[0, 0] = 1


def place_linear() -> Placement:
    from toolkit.placement import linear

    return linear(1, 4, Topology(2), 2)
