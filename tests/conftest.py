"""What all tests share."""

import asyncio
import inspect
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import kernels, numeric, record, scope, sglang_python
from toolkit.limited_logs import Limited

# A proxy of the machine's must not stand between a test and its own loopback servers.
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
os.environ.setdefault("no_proxy", "127.0.0.1,localhost")

# Machines are shared: a slow example says nothing of the code.
settings.register_profile("shared", deadline=None, max_examples=kernels.examples(kernels.USUAL))
settings.load_profile("shared")

HANGS_S = 240.0
"""A test that waits for what never comes fails by this, on however slow a machine."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is `async def` runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), HANGS_S))
    return True


@pytest.fixture(autouse=True)
def _unlimited_logs() -> Iterator[None]:
    """A command that a test runs in its own process limits what the handlers there take: those of
    the tests after it, too."""
    yield
    for handler in logging.getLogger().handlers:
        for limit in [each for each in handler.filters if isinstance(each, Limited)]:
            handler.removeFilter(limit)


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands tests out makes the place where the others share their SGLang."""
    if config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="toolkit-sglang-")
        config.add_cleanup(folder.cleanup)
        sglang_python.share(Path(folder.name))


def pytest_sessionstart(session: pytest.Session) -> None:
    """A run under other kernels is worth nothing if OpenBLAS did not take them."""
    asked = os.environ.get(kernels.ASKED)  # type: ignore[attr-defined]
    if asked and (wrong := kernels.wrong(asked, kernels.taken())):
        pytest.exit(wrong, returncode=3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        if numeric.is_numeric(path, getattr(item, "originalname", item.name)):
            item.add_marker("numeric")
        if scope.needs_sglang(item):
            item.add_marker("sglang")
    left_out = [item for item in items if scope.leaves_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where tests run in several processes, their parent is told of all: each writes its own, and
    the parent that of a process which died ("???")."""
    died = str(report.when) == "???"
    if "PYTEST_XDIST_WORKER" in os.environ or not hasattr(report, "node") or died:
        record.test(record.name(report.nodeid), report.duration)
        if report.failed:
            record.failure(record.name(report.nodeid), report.longreprtext)
