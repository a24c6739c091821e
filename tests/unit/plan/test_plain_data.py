"""Deployment files as data, and how they are written."""

import stat
from pathlib import Path

import pytest

from toolkit.plan.errors import PlanError
from toolkit.plan.plain_data import arg_key, refuse, write
from toolkit.settings.load import load_deployment


def test_flags_keep_their_spelling() -> None:
    given = {"prefill": {"args": {"chunked_prefill_size": 1}}}
    assert arg_key(given, "prefill", "chunked-prefill-size")[-1] == "chunked_prefill_size"
    assert arg_key({}, "prefill", "chunked-prefill-size")[-1] == "chunked-prefill-size"


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
