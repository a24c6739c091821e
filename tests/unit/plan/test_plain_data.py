"""Deployment files as data, and how they are written."""

import stat
from pathlib import Path

import pytest

from toolkit.plan.errors import PlanError
from toolkit.plan.plain_data import arg_key, get, moved, normal, put, refuse, write
from toolkit.settings.load import load_deployment


def test_short_forms_are_written_out() -> None:
    short = {"name": "x", "router": "sglang", "model": "embedded"}
    assert normal(short) == {
        "name": "x",
        "router": {"kind": "sglang"},
        "model": {"path": "embedded"},
    }
    assert short["router"] == "sglang"


def test_values_are_put_into_a_copy() -> None:
    start = {"router": {"tau": 0.1}}
    changed = put(put(start, ("decode", "args", "x"), 3), ("router", "tau"), None)
    assert changed == {"router": {}, "decode": {"args": {"x": 3}}}
    assert start == {"router": {"tau": 0.1}}
    assert get(changed, "decode", "args", "x") == 3 and get(changed, "decode", "dp", "x") is None


def test_flags_keep_their_spelling() -> None:
    given = {"prefill": {"args": {"chunked_prefill_size": 1}}}
    assert arg_key(given, "prefill", "chunked-prefill-size")[-1] == "chunked_prefill_size"
    assert arg_key({}, "prefill", "chunked-prefill-size")[-1] == "chunked-prefill-size"


def test_paths_still_lead_there_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "weights").mkdir()
    given = {"model": {"path": "weights", "config": "absent"}, "router": {"profile": "embedded"}}
    found = moved(given, tmp_path / "a", tmp_path / "b")
    assert found["model"] == {"path": str(tmp_path / "a" / "weights"), "config": "absent"}
    assert found["router"]["profile"] == "embedded"
    assert moved(given, tmp_path / "a", tmp_path / "a") == given


def test_a_file_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    document = {"name": "x", "decode": {"kv_tokens": 9000}}
    write(path, document, ["said", ""])
    assert path.read_text().startswith("# said\n#\nname: x\n")
    assert load_deployment(path).decode.kv_tokens == 9000
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444 & ~_mask()
    with pytest.raises(PlanError, match="is there already: give another name, or --force"):
        write(path, {"name": "y"}, [])
    assert load_deployment(path).name == "x"
    write(path, {"name": "y"}, [], force=True)
    assert load_deployment(path).name == "y"
    assert [each.name for each in tmp_path.iterdir()] == ["plan.yaml"], "nothing is left over"


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "plan.yaml"):
        with pytest.raises(PlanError, match="is no place for a file"):
            refuse(path, force=True)


def _mask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask
