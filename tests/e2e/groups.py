"""Which end-to-end tests run in one process, and in which order.

Two processes run side by side (`--dist loadgroup`), each one group after the other. Tests that
share a deployment or a worker are one group, so that it is started once. In a group those that
kill workers come last: the supervisor mends the deployment, but that takes time. A test that
shares nothing is a group by itself.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

VARIABLE = "TOOLKIT_TEST_GROUPS"
"""In the environment of the processes of a run: the file that says each test's group. pytest-xdist
puts the group behind a test's id instead, which pytest 9.2 no longer lets it do."""
SHARED = ("deployment", "cpu_dp", "plain_server")
"""Session fixtures (`conftest.py`). Tests that use the same are one group: the first one's."""
KILLS = ("test_faults", "test_kill_features")
"""Files that kill workers of the shared deployment; elsewhere such tests say so in their names."""

LONG = ("test_suite",)
"""Files with a test that shares nothing and takes minutes: were it the last one, the other process
would wait for it."""


def name(item: pytest.Function) -> str | None:
    """The test's group; None where it shares nothing."""
    for fixture in SHARED:
        if fixture in item.fixturenames:
            return fixture
    # pytest has no public way to ask for the scope of a test's fixtures.
    found = item._fixtureinfo.name2fixturedefs
    shared = [each for each, definitions in found.items() if definitions[-1].scope == "module"]
    if not shared:
        return None
    given = item.callspec.params if hasattr(item, "callspec") else {}
    parameters = [str(given[each]) for each in shared if each in given]
    return "-".join([item.path.stem, *parameters]).replace(" ", "_")


def kills(item: pytest.Item) -> bool:
    return item.path.stem in KILLS or "killed" in item.name


def order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The largest shared group first, so that the other process has something to do beside it;
    the small ones last, so that both end at about the same time; before them whatever is long."""
    names = [name(item) if isinstance(item, pytest.Function) else None for item in items]

    def place(at: int) -> tuple[int, bool, int, bool]:
        of = names[at]
        long = of is None and items[at].path.stem in LONG
        rank = SHARED.index(of) if of in SHARED else len(SHARED) + (of is None and not long)
        first = names.index(of) if of is not None else at
        return rank, not long, first, kills(items[at])

    return [items[at] for at in sorted(range(len(items)), key=place)]


def publish(items: list[pytest.Item]) -> None:
    """Tell the process that hands the tests out; each of those that run them says the same."""
    path = os.environ.get(VARIABLE)
    if path:
        found = {item.nodeid: name(item) for item in items if isinstance(item, pytest.Function)}
        with tempfile.NamedTemporaryFile("w", dir=Path(path).parent, delete=False) as file:
            json.dump({test: group for test, group in found.items() if group}, file)
        Path(file.name).replace(path)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A group goes to one process as a whole."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:  # every process has collected by now
            self._groups = json.loads(Path(os.environ[VARIABLE]).read_text())
        return self._groups.get(nodeid, nodeid)
