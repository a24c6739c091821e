"""Deployment files as plain data."""

from pathlib import Path

from toolkit.settings.document import absolute, get, moved, normal, put


def test_short_forms_are_written_out() -> None:
    short = {"name": "x", "router": "sglang", "model": "embedded", "speculative": "draft"}
    assert normal(short) == {
        "name": "x",
        "router": {"kind": "sglang"},
        "model": {"path": "embedded"},
        "speculative": {"draft": "draft"},
    }
    assert short["router"] == "sglang"


def test_values_are_put_into_a_copy() -> None:
    start = {"router": {"tau": 0.1}}
    changed = put(put(start, ("decode", "args", "x"), 3), ("router", "tau"), None)
    assert changed == {"router": {}, "decode": {"args": {"x": 3}}}
    assert start == {"router": {"tau": 0.1}}
    assert get(changed, "decode", "args", "x") == 3 and get(changed, "decode", "dp", "x") is None


def test_paths_still_lead_there_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "weights").mkdir()
    given = {"model": {"path": "weights", "config": "absent"}, "router": {"profile": "embedded"}}
    found = moved(given, tmp_path / "a", tmp_path / "b")
    assert found["model"] == {"path": str(tmp_path / "a" / "weights"), "config": "absent"}
    assert found["router"]["profile"] == "embedded"
    assert moved(given, tmp_path / "a", tmp_path / "a") == given


def test_what_is_written_and_keys_are_where_the_file_says(tmp_path: Path) -> None:
    given = {"worker_key_file": "k", "router": {"record": "r/x", "api_keys_file": "~/keys"}}
    assert absolute(given, tmp_path) == {
        "worker_key_file": str(tmp_path / "k"),
        "router": {"record": str(tmp_path / "r/x"), "api_keys_file": "~/keys"},
    }


def test_names_on_a_hub_are_no_paths(tmp_path: Path) -> None:
    given = {"model": {"path": "Qwen/Qwen3-30B-A3B"}, "speculative": {"draft": "lab/draft"}}
    assert absolute(given, tmp_path) == given
    (tmp_path / "lab/draft").mkdir(parents=True)
    assert absolute(given, tmp_path)["speculative"] == {"draft": str(tmp_path / "lab/draft")}
