"""Profile folders on disk: whole or not at all, and nothing in them changed unnoticed."""

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.profile import sample
from toolkit.profile_folder import document, store, swap
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import Profile

PROFILE, ARRAYS = sample.build()


def renamed(name: str, profile: Profile = PROFILE) -> Profile:
    model = profile.model.model_copy(update={"name": name})
    return profile.model_copy(update={"model": model})


def noted(note: str) -> Profile:
    setting = PROFILE.setting.model_copy(update={"note": note})
    return PROFILE.model_copy(update={"setting": setting})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole profile."""
    store.write(tmp_path / "one", PROFILE, ARRAYS, "<p>report</p>")
    return tmp_path / "one"


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes profile.json as a person with an editor would."""
    path = folder / store.JSON
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), "utf-8")


def test_round_trip(folder: Path) -> None:
    profile, arrays = store.read(folder)
    assert profile == PROFILE
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    assert (folder / store.REPORT).read_text("utf-8") == "<p>report</p>"
    assert sorted(x.name for x in folder.iterdir()) == [store.ARRAYS, store.JSON, store.REPORT]
    assert [x.name for x in folder.parent.iterdir()] == ["one"]


def test_json_is_for_people(folder: Path) -> None:
    lines = (folder / store.JSON).read_text("utf-8").splitlines()
    assert max(map(len, lines)) <= 100 + len("fingerprint") * 2
    assert len(lines) < 200  # short lists and requests take one line each
    assert any('"imbalance_decode"' in line and line.rstrip().endswith("],") for line in lines)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=40) | st.dictionaries(st.text(), x, max_size=6),
)


@given(VALUES)
def test_layout_keeps_every_value(value: object) -> None:
    assert json.loads(document._layout(value, "")) == value


def test_replaces_and_keeps_strangers_files(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    (folder / "placement-old.json").write_text("{}")
    (folder / "more").mkdir()
    (folder / "more" / "x").write_text("y")
    store.write(folder, renamed("second"), ARRAYS, None, files={"placement-new.json": "{}"})
    assert store.read(folder)[0].model.name == "second"
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "more" / "x").read_text() == "y"
    # Report and placements of before would be stale.
    assert not (folder / store.REPORT).exists()
    assert not (folder / "placement-old.json").exists()
    assert (folder / "placement-new.json").exists()


def test_replaces_what_a_link_points_to(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    store.write(link, renamed("second"), ARRAYS)
    assert link.is_symlink()
    assert store.read(folder)[0].model.name == "second"


def test_swap_without_exchange(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "_exchange", lambda one, other: False)
    store.write(folder, renamed("second"), ARRAYS)
    assert store.read(folder)[0].model.name == "second"
    assert [x.name for x in folder.parent.iterdir()] == ["one"]


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    store.write(tmp_path, PROFILE, ARRAYS)
    assert store.read(tmp_path)[0] == PROFILE


def test_refuses_what_is_not_a_profile(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ProfileError, match=r"holds thesis\.tex and no profile\.json"):
        store.write(tmp_path, PROFILE, ARRAYS)
    with pytest.raises(ProfileError, match="is a file"):
        store.write(tmp_path / "thesis.tex", PROFILE, ARRAYS)
    with pytest.raises(ProfileError, match="is a file, so"):
        store.write(tmp_path / "thesis.tex" / "deep" / "profile", PROFILE, ARRAYS)
    assert [x.name for x in tmp_path.iterdir()] == ["thesis.tex"]


AS_NOBODY = """
import os, sys
from tests.unit.profile import sample
from toolkit.profile_folder import store
from toolkit.profile_folder.errors import ProfileError
built = sample.build()
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)  # root may write anywhere
for place in sys.argv[1:]:
    try:
        store.write(place, *built)
    except ProfileError as error:
        print(error)
"""


def test_folders_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "closed").mkdir()
        base.chmod(0o555)
        (base / "closed").chmod(0o000)
        said = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(base / "new"), str(base / "closed" / "new")],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        base.chmod(0o755)
        (base / "closed").chmod(0o755)
    assert "cannot be written: make it writable" in said[0]
    assert "permission denied. Make it writable" in said[1]
    assert len(said) == 2


def test_disk_full_leaves_the_old_profile(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # a file that may not grow behaves as a full disk does, through the array library too
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(ProfileError, match=r"files may not grow.*is untouched"):
            store.write(folder, renamed("second"), ARRAYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read(folder)[0] == PROFILE
    assert [x.name for x in folder.parent.iterdir()] == ["one"]


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only")]
)
def test_system_errors_in_plain_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def fail(path: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(swap, "sync", fail)
    with pytest.raises(ProfileError, match=words):
        store.write(folder, renamed("second"), ARRAYS)
    assert store.read(folder)[0] == PROFILE


def test_not_a_profile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="is no folder"):
        store.read(tmp_path / "none")
    with pytest.raises(ProfileError, match=r"holds no profile\.json"):
        store.read(tmp_path)


def test_edited_figure_is_noticed(folder: Path) -> None:
    edit(folder, lambda data: data["profile"]["rho"].update(raw=0.999))
    with pytest.raises(ProfileError, match="was edited after it was written"):
        store.read(folder)


def test_edited_note_is_fine(folder: Path) -> None:
    edit(folder, lambda data: data["profile"]["setting"].update(note="measured by Ada"))
    assert store.read(folder)[0] == noted("measured by Ada")


def test_arrays_of_another_profile_are_noticed(folder: Path) -> None:
    other = folder.with_name("two")
    store.write(other, *sample.build(seed=1))
    (other / store.ARRAYS).replace(folder / store.ARRAYS)
    with pytest.raises(ProfileError, match=r"does not belong to its profile\.json"):
        store.read(folder)
    (folder / store.ARRAYS).unlink()
    with pytest.raises(ProfileError, match="copy the whole folder"):
        store.read(folder)


def test_unknown_and_missing_keys_are_named(folder: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["profile"]["centroids"]["innertia"] = data["profile"]["centroids"].pop("inertia")

    edit(folder, change)
    with pytest.raises(ProfileError) as caught:
        store.read(folder)
    assert "unknown key `centroids.innertia`: did you mean `inertia`?" in str(caught.value)
    assert "key `centroids.inertia` is missing" in str(caught.value)


def test_unknown_key_at_the_top(folder: Path) -> None:
    edit(folder, lambda data: data.update(arrays_sha265=data.pop("arrays_sha256")))
    with pytest.raises(ProfileError, match="did you mean `arrays_sha256`"):
        store.read(folder)


def test_wrong_kind_of_value(folder: Path) -> None:
    edit(folder, lambda data: data["profile"]["placements"][1].update(kind="eplbb"))
    with pytest.raises(ProfileError, match=r"`placements\.1\.kind`"):
        store.read(folder)


@pytest.mark.parametrize(
    ("version", "words"), [(2, "update the toolkit"), (0, "measure again"), ("1", "measure again")]
)
def test_other_schema_versions(folder: Path, version: object, words: str) -> None:
    edit(folder, lambda data: data["profile"].update(schema_version=version, new_key=1))
    with pytest.raises(ProfileError, match=words):
        store.read(folder)


def test_not_json(folder: Path) -> None:
    (folder / store.JSON).write_text("{", "utf-8")
    with pytest.raises(ProfileError, match="is not JSON"):
        store.read(folder)
    (folder / store.JSON).write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="cannot be read"):
        store.read(folder)
    (folder / store.JSON).write_text("[]", "utf-8")
    with pytest.raises(ProfileError, match="is not a profile"):
        store.read(folder)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("idf", np.zeros((3, 9), np.float32), r"`idf` is \[3, 9\].*ask for \[3, 8\]"),
        ("cluster", np.zeros(12, np.int64), "`cluster` is int64 where int32"),
        ("cluster", np.full(12, 2, np.int32), "`cluster` has values outside -1 to 1"),
        ("tokens_fit", np.full((5, 3, 2), 8, np.int16), "outside 0 to 7"),
        ("placement_joint", np.zeros((3, 8), np.int32), r"ask for \[3, 10\]"),
        ("idff", np.zeros(3), "unknown array `idff`: did you mean `idf`"),
        ("centroids", np.zeros((2, 24), np.float32), r"ask for \[2, 16\]"),
        ("idf", None, "`idf` is missing"),
    ],
)
def test_arrays_must_fit(tmp_path: Path, name: str, array: np.ndarray | None, words: str) -> None:
    arrays = {key: x for key, x in ARRAYS.items() if key != name}
    if array is not None:
        arrays[name] = array
    with pytest.raises(ProfileError, match=words):
        store.write(tmp_path / "x", PROFILE, arrays)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("rho", {"mask": (0, 9)}, "rho.mask"),
        ("rho", {"curve": (0.1,)}, "rho.curve"),
        ("data", {"requests": 13}, "12 entries for 13 requests"),
        ("activations", {"idle_decode": (0,)}, "idle_decode` has 1 entries for 3 MoE layers"),
        ("centroids", {"sizes": (1,)}, "centroids.sizes"),
        ("correlation", {"model": float("nan")}, "correlation.model"),
    ],
)
def test_figures_must_agree(tmp_path: Path, part: str, change: dict[str, Any], words: str) -> None:
    wrong = getattr(PROFILE, part).model_copy(update=change)
    with pytest.raises(ProfileError, match=words):
        store.write(tmp_path / "x", PROFILE.model_copy(update={part: wrong}), ARRAYS)
    assert not list(tmp_path.iterdir())


def test_a_key_that_a_later_toolkit_adds_needs_no_digest(folder: Path) -> None:
    """Optional fields may come: what an older toolkit wrote without them stays whole."""
    data = json.loads((folder / store.JSON).read_text("utf-8"))["profile"]
    del data["transfer"]
    content = json.dumps(
        {"profile": data, "arrays_sha256": "x", "figures_sha256": document._digest(data)}
    )
    assert document.parse(content, "p").profile.transfer is None
