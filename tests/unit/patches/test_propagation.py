"""Hooks reach those who imported a function by name, as SGLang's own walk would have it."""

import inspect
import json
import sys
import types
from typing import Any

import pytest

from patches.propagation import Places
from tests.sglang_python import run_python

INSTALLED = """
import contextlib, inspect, json, sys, types
import patches
from patches import base, registry
from patches.propagation import WALK
if sys.argv[1] == "their walk":
    base.one_walk = lambda functions: contextlib.nullcontext()
importer = sys.modules["importer"] = types.ModuleType("importer")
importer.mine = base.resolve("sglang.srt.entrypoints.engine._set_envs_and_config")
patches.register()
fitted, _ = base.fitted(registry.ALL)
hooks = {base.resolve(hook.target): hook.target for patch in fitted for hook in patch.hooks}
places = sorted(
    (hooks[value], module.__name__, name)
    for module in list(sys.modules.values())
    if isinstance(module, types.ModuleType)
    for name, value in list(vars(module).items())
    if isinstance(value, types.FunctionType) and value in hooks and hasattr(value, "__wrapped__")
)
print(json.dumps([places, list(inspect.signature(base.resolve(WALK)).parameters)]))
"""


def test_the_same_places_as_sglangs_own_walk_finds() -> None:
    ours, theirs = (run_python(INSTALLED, [way]) for way in ("one walk", "their walk"))
    assert ours.returncode == theirs.returncode == 0, ours.stderr[-2000:] + theirs.stderr[-2000:]
    places, parameters = json.loads(ours.stdout.splitlines()[-1])
    assert [places, parameters] == json.loads(theirs.stdout.splitlines()[-1])
    assert ["importer", "mine"] in [place for _, *place in places], places
    assert parameters == ["original", "wrapped", "source_module"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[types.ModuleType]:
    """Where a function is defined, and two that import it, one under two names."""

    def asked() -> str:
        return "original"

    made = [types.ModuleType(f"propagation_{n}") for n in range(3)]
    for module in made:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.asked = asked  # type: ignore[attr-defined]
    made[2].also = asked  # type: ignore[attr-defined]
    made[2].other = inspect  # type: ignore[attr-defined]
    return made


def test_all_who_have_it_get_the_wrapper_but_its_own_module(modules: list[Any]) -> None:
    source, first, second = modules
    original = source.asked
    places = Places([original])
    source.asked = wrapped = lambda: "wrapped"
    assert places.replace(original, wrapped, source) == 3
    assert first.asked is second.asked is second.also is wrapped
    assert second.other is inspect
    # A second hook, on the same function under the name of an importer.
    assert wrapped in places and original in places
    first.asked = again = lambda: "again"
    assert places.replace(wrapped, again, first) == 3
    assert source.asked is second.asked is second.also is again


def test_what_has_another_value_by_now_is_left_alone(modules: list[Any]) -> None:
    source, first, second = modules
    original, mine = source.asked, object()
    places = Places([original])
    first.asked = mine
    del second.also
    assert places.replace(original, len, source) == 1
    assert (first.asked, second.asked) == (mine, len)
    assert object() not in places
