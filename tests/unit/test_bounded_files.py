"""Files that somebody else may have written end in a sentence, whatever is in them."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.router.eldr.cluster import write_profile
from toolkit import bounded_files
from toolkit.bench.errors import BenchError
from toolkit.bench.prompts import load as load_prompts
from toolkit.bench.traces import stream
from toolkit.bounded_files import DEPTH, Unreadable, check_yaml, gunzip, parse_json, read_bytes
from toolkit.decide.replay import replay
from toolkit.errors import ToolkitError
from toolkit.fingerprint import model_fingerprint
from toolkit.launch.errors import LaunchError
from toolkit.launch.state import STATE, read_state
from toolkit.placement.base import load_placement
from toolkit.profile.calibration_prompts import read_prompts as load_calibration
from toolkit.profile_folder import store
from toolkit.profile_folder.errors import ProfileError
from toolkit.router.recording import Recording
from toolkit.settings.load import load_deployment
from toolkit.settings.router.config import ConfigError
from toolkit.settings.router.load import load_config

ROOT = Path(__file__).parents[2]
DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
ITSELF = "a: &a [*a]\n"


def profile(folder: Path, text: str) -> None:
    write_profile(folder / "p")
    (folder / "p" / store.JSON).write_text(text)
    store.read(folder / "p")


def deployment(folder: Path, text: str) -> None:
    (folder / "d.yaml").write_text(text)
    load_deployment(folder / "d.yaml")


def placement(folder: Path, text: str) -> None:
    (folder / "map.json").write_text(text)
    load_placement(folder / "map.json", 4, 2)


def state(folder: Path, text: str) -> None:
    (folder / STATE).write_text(text)
    read_state(folder)


def router(folder: Path, text: str) -> None:
    (folder / "router.json").write_text(text)
    load_config(folder / "router.json")


def model(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    model_fingerprint(str(folder))


def recording(folder: Path, text: str) -> None:
    (folder / "traffic.jsonl").write_text(text + "\n")
    Recording(str(folder / "traffic.jsonl"))


def trace(folder: Path, text: str) -> None:
    (folder / "trace.jsonl").write_text('{"timestamp":' + text + "}\n")
    list(stream(folder / "trace.jsonl"))


def prompts(folder: Path, text: str) -> None:
    (folder / "prompts.json").write_text(text)
    load_prompts(folder / "prompts.json")


def calibration(folder: Path, text: str) -> None:
    (folder / "prompts.jsonl").write_text(text)
    load_calibration(folder / "prompts.jsonl")


def decisions(_: Path, text: str) -> None:
    replay([text])


READERS: list[tuple[Callable[[Path, str], None], type[Exception]]] = [
    (profile, ProfileError),
    (deployment, LaunchError),
    (placement, ValueError),
    (state, LaunchError),
    (router, ConfigError),
    (model, ValueError),
    (recording, ConfigError),
    (trace, BenchError),
    (prompts, BenchError),
    (calibration, ProfileError),
    (decisions, ValueError),
]


@pytest.mark.parametrize(
    "text", [DEEP, DEEP_OBJECT, "[" * 500 + "]" * 500], ids=["list", "object", "500"]
)
@pytest.mark.parametrize(("read", "error"), READERS, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_nested_deeply_is_refused_in_a_sentence(
    tmp_path: Path, read: Callable[[Path, str], None], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as found:
        read(tmp_path, text)
    assert not isinstance(found.value, RecursionError)
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize("text", [ALIASES, ITSELF], ids=["aliases", "itself"])
def test_aliases_of_a_deployment_stand_for_little(tmp_path: Path, text: str) -> None:
    with pytest.raises(LaunchError, match="alias"):
        deployment(tmp_path, text)
    check_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")


def test_a_file_larger_than_the_bound_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(2**40)  # of holes
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match="more than 1 MiB"):
            read_bytes(path, 2**20)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_what_unpacks_to_much_is_not_unpacked() -> None:
    packed = gzip.compress(b"\0" * 2**26)
    with pytest.raises(Unreadable, match="unpacked"):
        gunzip(packed, 2**20)
    two = gzip.compress(b"abc") + gzip.compress(b"def")
    assert gunzip(two) == b"abcdef"
    with pytest.raises(EOFError):
        gunzip(gzip.compress(b"abc")[:-4])
    with pytest.raises(OSError, match="not gzip"):
        gunzip(b"plain text")


def test_a_line_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"timestamp": 1' + b" " * 2**22))
    monkeypatch.setattr(bounded_files.lines_of, "__defaults__", (2**20,))
    with pytest.raises(BenchError, match="a line of it has more than 1 MiB"):
        list(stream(path))


nested = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(nested, st.integers(0, 2 * DEPTH))
def test_the_depth_is_that_of_the_value(value: Any, more: int) -> None:
    def depth(each: Any) -> int:
        inner = (
            each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        )
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for number in range(more):
        value = [value] if number % 2 else {"a": value}
    text = json.dumps(value)
    if depth(value) <= DEPTH:
        assert parse_json(text) == value
    else:
        with pytest.raises(Unreadable, match="nested"):
            parse_json(text)


def test_errors_are_those_that_the_command_line_prints() -> None:
    assert issubclass(Unreadable, ToolkitError) and issubclass(Unreadable, ValueError)
