"""Orders to a launcher with small real processes: one worker ends, starts again, or both."""

from __future__ import annotations

import os
import stat

import pytest

from tests.unit.launch.runs import Events, until
from tests.unit.launch.stand_ins import two_workers
from toolkit.launch import orders
from toolkit.launch.errors import LaunchError
from toolkit.launch.operate import Operator
from toolkit.launch.orders import PIPE, Order
from toolkit.launch.running import running
from toolkit.launch.runs import Run
from toolkit.launch.state import read_state


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    events = Events()
    with running(two_workers(), folder, events) as deployment:
        yield deployment, events


def row(deployment, name):
    return next(r for r in read_state(deployment.run_dir)["workers"] if r["name"] == name)


def test_a_worker_is_restarted_and_it_is_no_death(up):
    deployment, events = up
    name, other = (worker.name for worker in deployment.workers)
    for count in range(1, 6):  # far more often than it may die
        before = row(deployment, name)
        orders.give(deployment.run_dir, Order("restart", name))
        deployment.wait_ready(name, before["restarts"] + 1, 30)
        after = row(deployment, name)
        assert after["pid"] != before["pid"] and after["restarts"] == before["restarts"] + 1
        events.wait_for(f"{name}: ended, to restart, as ordered", count)
    process = deployment.supervisor.fleet.processes[name]
    assert process.deaths == [] and process.rests == 0
    assert row(deployment, other)["restarts"] == 0


def test_a_worker_that_is_stopped_stays_so_until_it_is_started(up):
    deployment, events = up
    name = deployment.workers[1].name
    orders.give(deployment.run_dir, Order("stop", name))
    until(lambda: row(deployment, name)["status"] == "stopped")
    assert row(deployment, name)["pid"] is None
    assert read_state(deployment.run_dir)["phase"] == "ready"
    orders.give(deployment.run_dir, Order("start", name))
    deployment.wait_ready(name)
    pid = row(deployment, name)["pid"]
    orders.give(deployment.run_dir, Order("start", name))  # it runs: nothing to do
    orders.give(deployment.run_dir, Order("stop", "nobody"))
    events.wait_for("order to stop nobody: there is no such worker now")
    assert row(deployment, name)["pid"] == pid


def test_only_its_user_can_write_and_what_is_no_order_is_passed_over(up):
    deployment, events = up
    pipe = deployment.run_dir / PIPE
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o600
    fd = os.open(pipe, os.O_WRONLY)
    os.write(fd, b'junk\n[1]\n{"do": "explode", "worker": "w"}\n{"do": "stop"}\n\xff\n')
    os.write(fd, b'{"do": "stop", "wor')
    os.write(fd, b'ker": "in two pieces"}\n')
    os.close(fd)
    events.wait_for("order to stop in two pieces: there is no such worker now")


def test_orders_need_a_launcher_and_a_router(up, tmp_path):
    deployment, _ = up
    with pytest.raises(LaunchError, match="takes no orders"):
        orders.give(tmp_path, Order("stop", "w"))
    state = read_state(deployment.run_dir)
    with pytest.raises(LaunchError, match="no router that takes orders"):
        Operator(Run(deployment.run_dir, state, 0.0))
    with pytest.raises(LaunchError, match="it is draining"):
        Operator(Run(deployment.run_dir, {**state, "phase": "draining"}, 0.0))
    with pytest.raises(LaunchError, match="its launcher is gone"):
        Operator(Run(deployment.run_dir, {**state, "start_ticks": 1}, 0.0))


def test_the_pipe_goes_with_the_launcher(tmp_path):
    with running(two_workers(), tmp_path):
        assert (tmp_path / PIPE).exists()
    assert not (tmp_path / PIPE).exists()
