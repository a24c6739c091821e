"""A worker that dies too often rests, and is tried again for ever: real processes and signals."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.present import present
from tests.unit.launch.runs import Events
from tests.unit.launch.stand_ins import SERVER, plan, worker
from toolkit.launch.errors import LaunchError
from toolkit.launch.plan import RouterPlan
from toolkit.launch.running import running
from toolkit.launch.state import read_state
from toolkit.settings.processes import Restart

QUICK = Restart(
    max_restarts=1, window=60, first_delay=0.01, max_delay=0.01, rest_first=0.2, rest_max=0.4
)


def ill(flag: Any, status: int = 3) -> str:
    """A worker that ends at once while the file `flag` is there."""
    return f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit({status})\n{SERVER}"


@pytest.mark.slow
def test_all_workers_rest_and_come_back(tmp_path: Path) -> None:
    flag, events = tmp_path / "ill", Events()
    both = [worker(f"worker-{n}", free_port(), ill(flag)) for n in (0, 1)]
    with running(plan(both, QUICK), tmp_path / "run", events) as up:
        flag.touch()
        for each in up.workers:
            os.kill(present(each.pid), signal.SIGKILL)
        for each in up.workers:
            events.wait_for(f"{each.name}: exit status 3; died too often: rests, next try in", 3)
        assert read_state(tmp_path / "run")["phase"] == "ready"
        assert any("rests, next try in 0 s, at " in text for text in events.seen)
        flag.unlink()
        for each in up.workers:
            events.wait_for(f"{each.name}: ready", 2)
        assert {each.status for each in up.workers} == {"ready"}


def test_status_shows_who_rests_and_until_when(tmp_path: Path) -> None:
    flag, events = tmp_path / "ill", Events()
    one = worker("worker-0", free_port(), ill(flag))
    policy = Restart(max_restarts=0, rest_first=100)
    with running(plan([one], policy), tmp_path / "run", events) as up:
        os.kill(present(up.workers[0].pid), signal.SIGKILL)
        events.wait_for("worker-0: killed by SIGKILL; died too often")
        (row,) = read_state(tmp_path / "run")["workers"]
        assert row["status"] == "resting"
        assert "rests, next try in 100 s, at " in row["note"]


def test_a_refusal_is_final_also_later_but_ends_nothing_while_others_serve(tmp_path: Path) -> None:
    flag, events = tmp_path / "ill", Events()
    both = [worker(f"worker-{n}", free_port(), ill(flag, 78)) for n in (0, 1)]
    said = pytest.raises(LaunchError, match="refused")
    with said, running(plan(both, QUICK), tmp_path / "run", events) as up:
        flag.touch()
        first, second = (up.worker(f"worker-{n}") for n in (0, 1))
        up.supervisor.settled.clear()
        os.kill(present(first.pid), signal.SIGKILL)
        events.wait_for("worker-0: refused to start")
        assert read_state(tmp_path / "run")["phase"] == "ready"
        os.kill(present(second.pid), signal.SIGKILL)
        events.wait_for("worker-1: refused to start")
        assert up.supervisor.settled.wait(30)  # nobody is left who could ever serve
        raise up.supervisor.failure  # type: ignore[misc]


ROUTER = SERVER.replace(
    "        self.answer({})", "        self.answer(json.load(open(sys.argv[2])))"
)


def with_router(workers: Any, policy: Any, answer: Any) -> Any:
    """The workers behind a stand-in for our router, which answers what the file says."""
    port = free_port()
    router = RouterPlan(
        kind="toolkit",
        node="local",
        host="127.0.0.1",
        port=port,
        url=f"http://127.0.0.1:{port}",
        command=(sys.executable, "-S", "-c", ROUTER, str(port), str(answer)),
        env={},
        config={},
        local=True,
    )
    return replace(plan(workers, policy), routers=(router,))


@pytest.mark.slow
def test_deaths_by_poison_do_not_count(tmp_path: Path) -> None:
    """Six deaths by requests that kill any worker: it is back at once, and does not rest."""
    answer, events = tmp_path / "workers.json", Events()
    answer.write_text('{"poison": {}}')
    policy = Restart(max_restarts=1, first_delay=0.01, max_delay=0.01, rest_first=1000)
    one = worker("worker-0", free_port())
    with running(with_router([one], policy, answer), tmp_path / "run", events) as up:
        for deaths in range(1, 7):
            answer.write_text(json.dumps({"poison": {"worker-0": deaths}}))
            os.kill(present(up.worker("worker-0").pid), signal.SIGKILL)
            events.wait_for("worker-0: ready", deaths + 1)
        assert up.worker("worker-0").status == "ready"


def test_a_worker_that_rests_wakes_when_the_router_pardons_it(tmp_path: Path) -> None:
    answer, events = tmp_path / "workers.json", Events()
    answer.write_text("{}")  # a router that knows nothing of poison yet
    policy = Restart(max_restarts=0, first_delay=0.01, rest_first=1000)
    one = worker("worker-0", free_port())
    with running(with_router([one], policy, answer), tmp_path / "run", events) as up:
        os.kill(present(up.worker("worker-0").pid), signal.SIGKILL)
        events.wait_for("worker-0: killed by SIGKILL; died too often: rests, next try in 600 s")
        answer.write_text('{"poison": {"worker-0": 1}}')
        events.wait_for("worker-0: poisonous requests killed it; starting again")
        events.wait_for("worker-0: ready", 2)


@pytest.mark.slow
def test_the_router_is_tried_again_soon_and_for_ever(tmp_path: Path) -> None:
    answer, events = tmp_path / "workers.json", Events()
    answer.write_text("{}")
    one = worker("worker-0", free_port())
    policy = Restart(max_restarts=0, rest_first=0.1, rest_max=1000)
    with running(with_router([one], policy, answer), tmp_path / "run", events) as up:
        for lives in (2, 3, 4, 5, 6):
            os.kill(present(up.router_pid), signal.SIGKILL)
            events.wait_for("router: ready", lives, timeout=20)
        assert read_state(tmp_path / "run")["phase"] == "ready"
        assert threading.active_count() < 50
