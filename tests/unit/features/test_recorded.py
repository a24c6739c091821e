"""What is recorded of SGLang's features beside the toolkit's systems is what the launcher says."""

import os
from importlib.metadata import version

import pytest

from docs import features
from tests.features import dry
from tests.features.described import FEATURES, SYSTEMS
from tests.features.real import OF_EXPERTS, OF_REQUESTS, failed
from tests.releases import fetch
from tests.sglang_python import PROJECT

AGAIN = "python -m tests.features --record"


def test_every_feature_and_system_is_recorded_and_none_failed() -> None:
    found = features.newest()
    assert list(found) == [feature.name for feature in FEATURES], AGAIN
    for feature in FEATURES:
        places = found[feature.name]
        assert list(places["gpu"]) == list(SYSTEMS), AGAIN
        assert ("cpu" in places) == (feature.cpu is not None), AGAIN
        if feature.cpu is not None:
            here = [*OF_REQUESTS, *(OF_EXPERTS if feature.ranks else ())]
            refused = {each for each, said in places["gpu"].items() if said.startswith(dry.REFUSED)}
            assert list(places["cpu"]) == [each for each in here if each not in refused], AGAIN
        assert not failed(places["gpu"]) and not failed(places.get("cpu", {}))


@pytest.mark.sglang
@pytest.mark.timeout(900)
@pytest.mark.touched("features")
def test_the_launcher_says_what_is_recorded() -> None:
    found = features.newest()
    told = dry.told()
    assert {
        (feature.name, system): found[feature.name]["gpu"][system]
        for feature in FEATURES
        for system in SYSTEMS
    } == told, AGAIN


def test_every_release_is_recorded() -> None:
    found = features.of_releases()
    assert set(found) == {*fetch.FITTED} - {version("sglang")}, f"{AGAIN} --dry-run --release R"
    for places in found.values():
        assert list(places) == [feature.name for feature in FEATURES]
        assert all(list(each["gpu"]) == list(SYSTEMS) for each in places.values())


@pytest.mark.full
@pytest.mark.sglang
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", sorted({*fetch.FITTED} - {version("sglang")}))
def test_the_launcher_says_what_is_recorded_of_a_release(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (str(fetch.place(release)), str(PROJECT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    recorded = features.of_releases()[release]
    assert {
        (name, system): said
        for name, places in recorded.items()
        for system, said in places["gpu"].items()
    } == dry.told()


def test_what_differs_from_the_pinned_release_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"signatures": "refused: it is new", "level": "refused: it is new"}
    pinned = {"a": {"gpu": {"moves": "yes", **new}}, "b": {"gpu": {"moves": "yes"}}}
    other = {
        "a": {"gpu": dict.fromkeys(("moves", *new), "yes")},
        "b": {"gpu": {"moves": "refused: gone"}},
    }
    monkeypatch.setattr(features, "newest", lambda: pinned)
    monkeypatch.setattr(features, "of_releases", lambda: {"0.5.9": pinned, "0.5.10": other})
    table = features.in_releases().splitlines()
    assert table[0] == "| feature | system | pinned release | 0.5.9 | 0.5.10 |"
    assert table[2:] == [
        "| a | signatures, level | refused (1) | refused (1) | allowed |",
        "| b | all | allowed | allowed | refused (2) |", "", "1. it is new", "2. gone",
    ]  # fmt: skip
    monkeypatch.setattr(features, "of_releases", lambda: {"0.5.9": pinned})
    assert features.in_releases() == "Nothing is otherwise in 0.5.9."


def test_a_cell_says_what_real_workers_did_before_what_the_launcher_said() -> None:
    notes: list[str] = []
    cell = features._cell
    gpu = {"late dispatch": "yes", "moves": "refused: no", "signatures": "yes; it is incomplete"}
    cpu = {"late dispatch": "yes", "first token": "yes", "signatures": "off: why"}
    said = {
        system: cell(features._said({"gpu": gpu, "cpu": cpu}, system), notes)
        for system in ("late dispatch", "first token", "moves", "signatures")
    }
    assert said == {
        "late dispatch": "works", "first token": "works", "moves": "refused (1)",
        "signatures": "otherwise (2)",
    }  # fmt: skip
    assert notes == ["no", "off: why"]
    only = {"gpu": gpu}
    assert cell(features._said(only, "first token"), notes) == "allowed"
    assert cell(features._said(only, "signatures"), notes) == "allowed (3)"
