"""What patches keep hangs on two objects, by its class, and is nowhere else in their modules."""

import ast
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from patches import scheduler_state, server_state
from patches.state_by_class import StateByClass

PATCHES = Path(scheduler_state.__file__).parent
OUTSIDE = {
    "base.py": {"_entered"},
    "environment.py": {"_installed", "_expected"},
    "stubs.py": {"_torchvision_library"},
    "cpu/deterministic.py": {"_library"},
    "cpu/template.py": {"_started"},
    "scheduler_state.py": {"_current"},
}
"""What is there before a scheduler is, and the state itself: `patches.scheduler_state` says why."""
CONSTANT = {"Patch", "Hook", "ContextVar", "frozenset", "tuple", "compile", "TypeVar", "getLogger"}
CONSTANT |= {"limited_logger", "encode", "range", "Variant", "cast"}


def kept(tree: ast.Module) -> Iterator[str]:
    """Names of a module that can change while a worker runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value  # type: ignore[assignment]
        else:
            continue
        if _changes(value):
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def _changes(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name not in CONSTANT
    empty = isinstance(value, ast.Dict) and not value.keys
    empty = empty or (isinstance(value, ast.List | ast.Set) and not value.elts)
    return empty or (isinstance(value, ast.Constant) and value.value is None)


def found() -> dict[str, set[str]]:
    names = {
        str(file.relative_to(PATCHES)): set(kept(ast.parse(file.read_text(encoding="utf-8"))))
        for file in sorted(PATCHES.rglob("*.py"))
        if "cpu_stubs" not in file.parts
    }
    return {file: each for file, each in names.items() if each}


def test_no_module_of_a_patch_keeps_anything() -> None:
    assert found() == OUTSIDE, "keep it in a class: patches/state_by_class.py"


@pytest.mark.parametrize(
    "text",
    ["HELD = {}", "LOG: StepLog = StepLog()", "trace: X | None = None", "def f():\n global a"],
)
def test_what_is_kept_is_found(text: str) -> None:
    assert list(kept(ast.parse(text)))


def test_the_state_hangs_on_the_scheduler_and_is_the_process_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_state, "_current", scheduler_state.SchedulerState())
    scheduler = SimpleNamespace()
    state = scheduler_state.of(scheduler)
    assert state is scheduler_state.of(scheduler) is scheduler_state.current()
    assert state is getattr(scheduler, scheduler_state.ATTRIBUTE)
    assert state.scheduler is scheduler


@dataclass
class Counted:
    number: int = 0


def test_there_is_one_object_of_a_class() -> None:
    state = StateByClass()
    assert state.find(Counted) is None
    state.get(Counted).number = 3
    assert state.get(Counted) == state.find(Counted) == Counted(3)
    one = Counted(5)
    assert state.keep(one) is one is state.get(Counted)


def test_threads_that_ask_at_once_get_the_same_object() -> None:
    both = threading.Barrier(2, timeout=60)

    class Slow:
        def __init__(self) -> None:
            both.wait()

    state, got = StateByClass(), set[Slow]()
    threads = [threading.Thread(target=lambda: got.add(state.get(Slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {state.get(Slow)}


def test_each_server_has_a_state_of_its_own() -> None:
    one, other = SimpleNamespace(), SimpleNamespace()
    assert server_state.of(one) is server_state.of(one)
    assert server_state.of(one) is not server_state.of(other)
