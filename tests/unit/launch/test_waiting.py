"""The launcher's loop sleeps while it has nothing to do."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.unit.launch.runs import Events, until
from tests.unit.launch.stand_ins import plan, routed, worker
from toolkit.launch.plan import Plan
from toolkit.launch.running import running
from toolkit.launch.supervisor import Supervisor
from toolkit.settings.processes import Restart

TURNS_A_SECOND = 40


class Turns(Events):
    """Counts how often the loop goes round."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def refresh(self, phase: object, processes: object) -> None:
        self.count += 1


def ill_then_slow(folder: Path) -> Plan:
    """Our router, and a worker that dies once and then takes two seconds to get up."""
    made = routed(free_port(), free_port())
    code = f"""if True:
        import os, pathlib, sys, time
        flag = pathlib.Path({str(folder / "was-ill")!r})
        if not flag.exists():
            flag.touch()
            sys.exit(3)
        time.sleep(2)
        os.execv(sys.executable, {list(made.workers[0].command)!r})"""
    one = replace(made.workers[0], command=(sys.executable, "-c", code))
    return replace(made, workers=(one,), restart=Restart(first_delay=0.01, max_delay=0.01))


@pytest.mark.slow
def test_after_a_death_in_the_start(tmp_path: Path) -> None:
    turns = Turns()
    with running(ill_then_slow(tmp_path), tmp_path / "run", turns):
        assert turns.count < 6 * TURNS_A_SECOND
    assert any("starting again" in text for text in turns.seen)


def test_while_one_that_was_starting_ends_slowly(tmp_path: Path) -> None:
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    made = plan([worker("worker-0", free_port(), deaf + "time.sleep(60)")])
    made = replace(made, timeouts=made.timeouts.model_copy(update={"stop": 2.0}))
    turns = Turns()
    supervisor = Supervisor(made, tmp_path, turns)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    turns.wait_for("worker-0: started")
    log = tmp_path / "worker-0.log"
    until(lambda: log.exists() and "\ndeaf\n" in log.read_text())
    before = turns.count
    supervisor.request_stop()
    thread.join(60)
    assert supervisor.phase == "stopped"
    assert turns.count - before < 3 * TURNS_A_SECOND
