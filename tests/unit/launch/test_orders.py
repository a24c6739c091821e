"""Orders to a launcher with small real processes: one worker ends, starts again, or both."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.runs import Events, until
from tests.unit.launch.stand_ins import two_workers
from toolkit.launch import orders
from toolkit.launch.command import source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.operate import Operator
from toolkit.launch.orders import LaunchOrder, Orders
from toolkit.launch.running import running
from toolkit.launch.runs import Run
from toolkit.launch.state import read_state


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("orders")
    events = Events()
    with running(two_workers(), folder, events) as deployment:
        yield deployment, events


def row(deployment: Any, name: Any) -> Any:
    return next(r for r in read_state(deployment.run_dir)["workers"] if r["name"] == name)


def test_a_worker_is_restarted_and_it_is_no_death(up: Any) -> None:
    deployment, events = up
    name, other = (worker.name for worker in deployment.workers)
    for count in range(1, 6):  # far more often than it may die
        before = row(deployment, name)
        orders.give(deployment.supervisor.run_id, LaunchOrder("restart", name))
        deployment.wait_ready(name, before["restarts"] + 1, 30)
        after = row(deployment, name)
        assert after["pid"] != before["pid"] and after["restarts"] == before["restarts"] + 1
        events.wait_for(f"{name}: ended, to restart, as ordered", count)
    process = deployment.supervisor.fleet.processes[name]
    assert process.deaths == [] and process.rests == 0
    assert row(deployment, other)["restarts"] == 0


def test_a_worker_that_is_stopped_stays_so_until_it_is_started(up: Any) -> None:
    deployment, events = up
    name = deployment.workers[1].name
    orders.give(deployment.supervisor.run_id, LaunchOrder("stop", name))
    until(lambda: row(deployment, name)["status"] == "stopped")
    assert row(deployment, name)["pid"] is None
    assert read_state(deployment.run_dir)["phase"] == "ready"
    orders.give(deployment.supervisor.run_id, LaunchOrder("start", name))
    deployment.wait_ready(name)
    pid = row(deployment, name)["pid"]
    orders.give(deployment.supervisor.run_id, LaunchOrder("start", name))  # it runs: nothing to do
    orders.give(deployment.supervisor.run_id, LaunchOrder("stop", "nobody"))
    events.wait_for("order to stop nobody: there is no such worker now")
    assert row(deployment, name)["pid"] == pid


def test_what_is_no_order_is_passed_over(up: Any) -> None:
    deployment, events = up
    junk = (b"junk", b"[1]", b'{"do": "explode", "worker": "w"}', b'{"do": "stop"}', b"\xff", b"")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        for data in junk:
            out.sendto(data, f"\0toolkit.orders.{deployment.supervisor.run_id}")
    orders.give(deployment.supervisor.run_id, LaunchOrder("stop", "the last one"))
    events.wait_for("order to stop the last one: there is no such worker now")


@pytest.mark.skipif(os.getuid() != 0, reason="takes root to be somebody else")
def test_another_user_is_not_heard() -> None:
    own = Orders("a-run-of-root")
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]);"
        "from toolkit.launch.orders import LaunchOrder, give;"
        "os.setuid(65534); give('a-run-of-root', LaunchOrder('stop', 'w'))"
    )
    for switch, heard in ((code, []), (code.replace("os.setuid(65534);", ""), ["w"])):
        subprocess.run([sys.executable, "-c", switch, str(source_root())], check=True)
        assert [order.worker for order in own.read()] == heard
    own.close()


def test_orders_need_a_launcher_and_a_router(up: Any) -> None:
    deployment, _ = up
    with pytest.raises(LaunchError, match="takes no orders"):
        orders.give("none", LaunchOrder("stop", "w"))
    state = read_state(deployment.run_dir)
    with pytest.raises(LaunchError, match="no router that takes orders"):
        Operator(Run(deployment.run_dir, state, 0.0))
    with pytest.raises(LaunchError, match="it is draining"):
        Operator(Run(deployment.run_dir, {**state, "phase": "draining"}, 0.0))
    with pytest.raises(LaunchError, match="its launcher is gone"):
        Operator(Run(deployment.run_dir, {**state, "start_ticks": 1}, 0.0))


def test_nobody_takes_orders_when_the_launcher_has_ended(tmp_path: Path) -> None:
    with running(two_workers(), tmp_path) as deployment:
        run_id = deployment.supervisor.run_id
        orders.give(run_id, LaunchOrder("start", deployment.workers[0].name))
    with pytest.raises(LaunchError, match="takes no orders"):
        orders.give(run_id, LaunchOrder("stop", "w"))
