"""Which end-to-end tests run in one process, and in which order.

Two processes run side by side (`--dist loadgroup`), each one group after the other. Tests that
share a deployment or a worker are one group, so that it is started once. In a group those that
kill workers come last: the supervisor mends the deployment, but that takes time. A test that
shares nothing is a group by itself.
"""

from __future__ import annotations

import pytest

SHARED = ("deployment", "cpu_dp", "plain_server")
"""Session fixtures (`conftest.py`). Tests that use the same are one group: the first one's."""
KILLS = ("test_faults", "test_kill_features")
"""Files that kill workers of the shared deployment; elsewhere such tests say so in their names."""


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


def kills(item: pytest.Function) -> bool:
    return item.path.stem in KILLS or "killed" in item.name


def order(items: list[pytest.Function]) -> list[pytest.Function]:
    """The largest shared group first, so that the other process has something to do beside it;
    the small ones last, so that both end at about the same time."""
    names = [name(item) for item in items]

    def place(at: int) -> tuple[int, int, bool]:
        of = names[at]
        rank = SHARED.index(of) if of in SHARED else len(SHARED) + (of is None)
        first = names.index(of) if of is not None else at
        return rank, first, kills(items[at])

    return [items[at] for at in sorted(range(len(items)), key=place)]
