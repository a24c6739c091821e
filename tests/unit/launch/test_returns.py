"""What the launcher tells the router of its workers' returns, and that it tells it until heard."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.stand_ins import routed
from toolkit.launch.process import Managed, Status
from toolkit.launch.returns import AGAIN_S, ReturnReporter, expected

NOW = 1000.0


def worker(status: Status, **more: Any) -> Managed:
    url = "http://127.0.0.1:1"
    made = Managed("decode-0", "decode", url, url, (), {}, Path("nowhere"))
    made.status, made.usual_start_s = status, 7.0
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("status", "more", "back_in_s"),
    [
        (Status.READY, {}, 0.0),
        (Status.STUCK, {}, 8.0),
        (Status.RESTARTING, {"next_start": NOW + 1}, 8.0),
        (Status.RESTING, {"next_start": NOW + 60}, 67.0),
        (Status.STARTING, {"started": NOW - 5}, 2.0),
        (Status.STARTING, {"started": NOW - 50}, 1.0),
        (Status.STOPPED, {}, None),
        (Status.REFUSED, {}, None),
    ],
)
def test_when_a_worker_is_back(
    status: Status, more: dict[str, Any], back_in_s: float | None
) -> None:
    told = expected([worker(status, **more)], NOW, first_delay=1.0)
    assert told == {"decode-0": {"usual_s": 7.0, "back_in_s": back_in_s}}


def test_of_what_was_never_ready_nothing_is_known() -> None:
    assert expected([worker(Status.STARTING, usual_start_s=None)], NOW, 1.0) == {}


def test_a_worker_on_several_nodes_is_told_of_once() -> None:
    head = worker(Status.READY, name="decode-0-node-0")
    second = worker(Status.READY, name="decode-0-node-1", url=None)
    assert list(expected([head, second], NOW, 1.0)) == ["decode-0"]


class Asked:
    """What is asked in the background, for a test to answer."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Any], None]] = []

    def ask(self, question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        self.answers.append(answer)


def test_it_is_told_at_each_change_and_again_until_it_is_heard() -> None:
    asked = Asked()
    plan = routed(1, 2)
    copy = ReturnReporter(plan, plan.routers[0], "run", asked)  # type: ignore[arg-type]
    router = replace(worker(Status.STARTING), name="router", role="router")
    router.status = Status.STARTING
    processes = [worker(Status.READY), router]
    copy.tick(processes, NOW)
    assert not asked.answers, "the router is not up"
    router.status = Status.READY
    copy.tick(processes, NOW)
    copy.tick(processes, NOW)
    assert len(asked.answers) == 1
    asked.answers[-1](OSError("it does not answer"))
    timer = copy.timer
    assert timer is not None
    copy.tick(processes, timer - 0.1)
    assert len(asked.answers) == 1
    copy.tick(processes, timer + AGAIN_S)
    assert len(asked.answers) == 2
    asked.answers[-1]((200, b""))
    copy.tick(processes, NOW + 100)
    assert len(asked.answers) == 2, "nothing has changed"
    processes[0].status = Status.RESTARTING
    copy.tick(processes, NOW + 101)
    assert len(asked.answers) == 3
