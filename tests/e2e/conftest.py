"""One deployment of real CPU workers for all end-to-end tests: starting one takes a minute. And
what their answers are compared with."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.e2e import evidence
from tests.e2e.reference import Reference
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.deployment import load_deployment
from toolkit.launch.plan import resolve
from toolkit.launch.running import Running, running
from toolkit.resources import recipes_dir


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, Any]:
    """A failure is shown with what the deployments of its fixtures were doing."""
    report = yield
    if report.when == "call" and report.failed:
        for value in item.funcargs.values():
            if isinstance(value, Running):
                report.sections[:0] = evidence.of(value)
    return report


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-demo.yaml, up: .router_url, .router_pid, .workers (name, role, url, pid).

    A test that kills a process waits before it ends until it is back:
    `deployment.wait_ready(worker.name, worker.restarts + 1)`.
    """
    plan = resolve(load_deployment(recipes_dir() / "cpu-demo.yaml"))
    folder = tmp_path_factory.mktemp("cpu-demo")
    with running(plan, folder) as up, pytest.MonkeyPatch.context() as environment:
        # This run is not among the user's, where commands of the toolkit look for its key.
        environment.setenv(WORKER_KEY_VARIABLE, up.worker_key)
        yield up


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same model in transformers."""
    return Reference()
