"""Another release beside the pinned one: refused when it is none, whole or not there."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolkit.setup import installer, releases, say
from toolkit.setup.layout import SetupLayout, here


@pytest.fixture
def place(tmp_path: Path) -> SetupLayout:
    """A checkout of its own."""
    made = SetupLayout(tmp_path)
    made.requirements.parent.mkdir(parents=True)
    made.requirements.write_text("sglang==0.5.21\n")
    made.venv.mkdir()
    return made


def fetched(place: SetupLayout, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> list[str]:
    """pip stands aside: what it was asked for, by the names of packages."""
    asked: list[str] = []

    def install(layout: SetupLayout, arguments: Sequence[str]) -> None:
        place = arguments.index("--target") + 1
        asked.extend(arguments[place + 1 :])
        target = Path(arguments[place])
        (target / "sglang").mkdir()
        if fails:
            raise say.SetupError("The download broke off.")

    monkeypatch.setattr(installer, "install", install)
    return asked


def test_the_pinned_release_is_there_already(place: SetupLayout) -> None:
    assert releases.ensure(place, "0.5.21") is None
    assert releases.environment(None) == {}


@pytest.mark.parametrize("wrong", ["newest", "0.5", "../0.5.22", "0.5.22 --index-url=x", ""])
def test_what_is_no_version_is_refused(place: SetupLayout, wrong: str) -> None:
    with pytest.raises(say.SetupError, match="give a release's version"):
        releases.ensure(place, wrong)


def test_another_one_is_fetched_once(place: SetupLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fetched(place, monkeypatch)
    found = releases.ensure(place, "0.5.22")
    assert found == releases.ensure(place, "0.5.22") == place.venv / "sglang" / "0.5.22"
    assert found is not None and (found / "sglang").is_dir()
    assert asked == ["sglang==0.5.22"]
    releases.ensure(place, "0.5.23")
    assert asked[1:] == ["sglang==0.5.23", *releases.BESIDE["0.5.23"]]
    monkeypatch.setenv("PYTHONPATH", "mine")
    assert releases.environment(found) == {"PYTHONPATH": f"{found}{os.pathsep}mine"}


def test_a_download_that_breaks_off_leaves_nothing(
    place: SetupLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(place, monkeypatch, fails=True)
    with pytest.raises(say.SetupError, match="broke off"):
        releases.ensure(place, "0.5.22")
    assert list((place.venv / "sglang").iterdir()) == []


def test_a_release_that_nobody_has_tried_is_said(
    place: SetupLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched(place, monkeypatch)
    releases.ensure(place, "0.9.9")
    assert "careful: the patches are proven with SGLang 0.5.20" in capsys.readouterr().out


def test_the_pinned_release_is_a_proven_one() -> None:
    assert releases.pinned(here()) in releases.PROVEN
