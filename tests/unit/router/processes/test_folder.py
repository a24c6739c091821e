"""The folder that the processes of a router share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.router.house import House, run
from toolkit.router.processes import supervisor
from toolkit.router.processes.switched_file import NAME, SwitchedFile


def an_ended_process() -> str:
    command = [sys.executable, "-c", "import os; print(os.getpid())"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_folders_of_routers_that_were_killed_are_cleared(tmp_path: Path) -> None:
    gone = an_ended_process()
    dead = tmp_path / f"{supervisor.PREFIX}{gone}-abc"
    (dead / "metrics").mkdir(parents=True)
    mine = tmp_path / f"{supervisor.PREFIX}{os.getpid()}-abc"
    other = tmp_path / f"{supervisor.PREFIX}nonsense-abc"
    for each in (mine, other):
        each.mkdir()
    supervisor.clear_left(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])


def test_the_folder_of_a_router_in_another_container_stays(tmp_path: Path) -> None:
    """Its process has a number that is nobody's here; it has the folder, as all it has forked."""
    theirs = tmp_path / f"{supervisor.PREFIX}{an_ended_process()}-abc"
    theirs.mkdir()
    held = supervisor.hold(theirs)
    child = os.fork()
    if child == 0:
        signal.pause()
    os.close(held)
    try:
        supervisor.clear_left(tmp_path)
        assert theirs.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    supervisor.clear_left(tmp_path)
    assert not theirs.exists()


def test_what_is_switched_is_had_by_the_next_one(tmp_path: Path) -> None:
    async def check() -> None:
        first, second = House(policy="shortest_queue"), House(policy="shortest_queue")
        file = SwitchedFile(tmp_path)
        file.restore(first.control)  # there is none yet
        first.policies.use("decode", "br0")
        first.policies.use_dispatch("concurrent")
        first.control.switches.early_choice = False
        drains = first.control.drains
        for body in ({"worker": "d1"}, {"worker": "d0"}):
            drains.take(drains.made(drains.read(body, 0.0)))
        drains.take(drains.made(drains.read({"worker": "d0", "undo": True}, 0.0)))
        file.save(first.control)
        SwitchedFile(tmp_path).restore(second.control)
        assert second.policies.names == first.policies.names
        assert second.policies.dispatch == "concurrent"
        assert second.control.switches.early_choice is False
        assert [rank.held for rank in second.ranks] == [False, True]
        assert second.control.drains.orders.all == drains.orders.all
        assert [order.on for order in drains.orders.all] == [True, False]

    run(check)


def test_a_file_that_cannot_be_used_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        house = House()
        SwitchedFile(tmp_path / "lacking").save(house.control)
        (tmp_path / NAME).write_bytes(b"nonsense")
        SwitchedFile(tmp_path).restore(house.control)

    run(check)
    assert "is not kept" in caplog.text and "is not known" in caplog.text
