"""The deployments and workers that end-to-end tests share: starting one takes most of a minute.
And what their answers are compared with."""

import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.dp_recipe import recipe
from tests.e2e import evidence, groups
from tests.e2e.deployments import Shared, deployed
from tests.e2e.left_behind import MemoryWatch
from tests.e2e.reference import Reference
from tests.e2e.worker_process import worker
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running
from toolkit.resources import recipes_dir


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands tests out makes the place where the others say which go together."""
    if config.getvalue("dist") == "loadgroup":
        folder = tempfile.TemporaryDirectory(prefix="toolkit-groups-")
        config.add_cleanup(folder.cleanup)
        os.environ[groups.VARIABLE] = str(Path(folder.name) / "groups.json")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> groups.Scheduling | None:
    """Tests of one deployment go to one process (`groups`)."""
    if groups.VARIABLE in os.environ and config.getvalue("dist") == "loadgroup":
        return groups.Scheduling(config, log)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.get_closest_marker("e2e")]
    items[:] = [item for item in items if item not in set(ours)] + groups.order(ours)
    groups.publish(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, Any]:
    """A failure is shown with what the deployments of its fixtures were doing."""
    report = yield
    if report.when == "call" and report.failed:
        for value in item.funcargs.values():
            if isinstance(value, Running):
                report.sections[:0] = evidence.of(value)
    return report


_ENDS: dict[str, ExitStack] = {}
"""By group (`groups.name`): what ends the deployment that its tests share."""


def _shared(group: str, source: Path, folder: Path) -> Iterator[Shared]:
    """Until the last test of the group has run, not until the session ends: the ranks of an idle
    deployment with DP attention take a third of a core, and each deployment takes 2 GB."""
    with ExitStack() as stack:
        up = stack.enter_context(deployed(source, folder, own_imports=True))
        _ENDS[group] = stack
        yield Shared(up)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Function, nextitem: pytest.Function | None
) -> Generator[None, Any, Any]:
    result = yield
    group = groups.name(item)
    if nextitem is not None and groups.name(nextitem) != group:
        with _ENDS.pop(group or "", ExitStack()):
            pass
    if nextitem is not None and nextitem.path != item.path:
        for watch in _WATCHES:
            nothing_left(watch)
    return result


_WATCHES: list[MemoryWatch] = []


@pytest.fixture(scope="session", autouse=True)
def memory_watch() -> Iterator[None]:
    """Whatever a test's processes had in shared memory is gone with them, however they end; asked
    after the last test of each file."""
    with closing(MemoryWatch()) as watch:
        _WATCHES.append(watch)
        yield
        _WATCHES.remove(watch)
        nothing_left(watch)


def nothing_left(watch: MemoryWatch) -> None:
    left = watch.left()
    assert not left, f"in /dev/shm, and nobody has it any more: {', '.join(left)}"


@pytest.fixture(scope="session")
def cpu_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """launch/cpu-demo.yaml, for `deployment`."""
    recipe, folder = recipes_dir() / "cpu-demo.yaml", tmp_path_factory.mktemp("cpu-demo")
    yield from _shared("deployment", recipe, folder)


@pytest.fixture(scope="session")
def deployment(cpu_demo: Shared) -> Iterator[Running]:
    """launch/cpu-demo.yaml, up: .router_url, .router_pid, .workers (name, role, url, pid).

    A test that kills a process waits before it ends until it is back:
    `deployment.wait_ready(worker.name, worker.restarts + 1)`. Policies need not be put back.
    """
    with pytest.MonkeyPatch.context() as environment:
        # This run is not among the user's, where commands of the toolkit look for its key.
        environment.setenv(WORKER_KEY_VARIABLE, cpu_demo.up.worker_key)
        yield cpu_demo.up


@pytest.fixture(scope="session")
def cpu_dp_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """launch/cpu-dp.yaml, for `cpu_dp`."""
    folder = tmp_path_factory.mktemp("cpu-dp")
    yield from _shared("cpu_dp", recipe("attention", folder), folder)


@pytest.fixture(scope="session")
def cpu_dp(cpu_dp_shared: Shared) -> Running:
    """launch/cpu-dp.yaml with workers that can hide lengths (`tests.dp_recipe`), up."""
    return cpu_dp_shared.up


@pytest.fixture(autouse=True)
def left_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever uses a shared deployment leaves it whole, whatever comes next."""
    used: list[Shared] = [
        request.getfixturevalue(name)
        for name in ("cpu_demo", "cpu_dp_shared")
        if name in request.fixturenames
    ]
    yield
    for value in request.node.funcargs.values():
        if isinstance(value, Running):
            forget_deaths(value)
    for shared in used:
        wrong = shared.restore()
        assert not wrong, f"the test has left the deployment so: {wrong}"


def forget_deaths(up: Running) -> None:
    """The launcher waits longer after each death of some minutes, a minute after the sixth: whom
    one test has killed is not to keep the next one waiting."""
    for process in up.supervisor.fleet.processes.values():
        process.deaths, process.rests = [], 0


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A plain SGLang server of the model, without a prefix cache; prompts above 512 tokens take
    several forwards."""
    log = tmp_path_factory.mktemp("plain") / "worker.log"
    flags = ("--served-model-name", "embedded", "--sleep-on-idle", "--disable-radix-cache")
    with worker(*flags, "--chunked-prefill-size", "512", log=log) as url:
        yield url


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same model in transformers."""
    return Reference()
