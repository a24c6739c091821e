"""When a deployment goes from one phase to the next: pure."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.launch.stand_ins import plan, worker
from toolkit.launch.phases import Phase, PhaseInputs, PhaseMove, limit, next_move
from toolkit.launch.plan import Plan, RouterPlan
from toolkit.launch.process import Managed, Status

READY, DEAD = Status.READY, Status.REFUSED
ROUTER = RouterPlan("toolkit", "a", "127.0.0.1", 30000, "http://127.0.0.1:30000", (), {}, {}, True)


def planned(router: RouterPlan | None = ROUTER) -> Plan:
    return replace(plan([worker("worker-0", 31000)]), routers=(router,) if router else ())


def process(status: Status, role: str = "plain", lives: bool = False) -> Managed:
    m = Managed(role, role, None, "", (), {}, Path("/nowhere.log"), status=status, note="why")
    m.popen = object() if lives else None  # type: ignore[assignment]
    return m


def phase_after(phase: Phase, seen: PhaseInputs) -> Phase:
    move = next_move(phase, seen)
    return move.phase if move else phase


@pytest.mark.parametrize("phase", Phase)
def test_at_once_ends_whatever_has_not_ended(phase: Phase) -> None:
    seen = PhaseInputs(planned(), [process(READY, lives=True)], stop=True, at_once=True)
    over = phase in (Phase.STOPPED, Phase.FAILED)
    assert phase_after(phase, seen) is (phase if over else Phase.STOPPED)


@pytest.mark.parametrize(
    ("statuses", "stop", "late", "then"),
    [
        ((Status.STARTING, READY), False, False, Phase.STARTING),
        ((READY, READY), False, False, Phase.STARTING),  # until something is generated
        ((READY, DEAD), False, False, Phase.FAILED),
        ((Status.STARTING, READY), False, True, Phase.FAILED),
        ((READY, READY), False, True, Phase.FAILED),
        ((READY, DEAD), True, True, Phase.STOPPING),
    ],
)
def test_the_start(statuses: tuple[Status, ...], stop: bool, late: bool, then: Phase) -> None:
    seen = PhaseInputs(planned(), [process(status) for status in statuses], stop, late=late)
    assert phase_after(Phase.STARTING, seen) is then


def test_a_late_start_says_who_is_missing() -> None:
    missing = PhaseInputs(
        planned(), [process(Status.STARTING), process(READY, "router")], late=True
    )
    move = next_move(Phase.STARTING, missing)
    assert move is not None and [problem.where for problem in move.problems] == ["plain"]
    move = next_move(Phase.STARTING, PhaseInputs(planned(), [process(READY)], late=True))
    assert move is not None and "no generation within" in str(move.problems[0])


def test_workers_of_a_router_elsewhere_need_no_generation() -> None:
    elsewhere = planned(replace(ROUTER, local=False))
    assert phase_after(Phase.STARTING, PhaseInputs(elsewhere, [process(READY)])) is Phase.READY
    waiting = PhaseInputs(elsewhere, [process(READY), process(Status.STARTING)])
    assert phase_after(Phase.STARTING, waiting) is Phase.STARTING


@pytest.mark.parametrize(
    ("router", "workers", "then"),
    [
        (READY, (READY, DEAD), Phase.READY),
        (READY, (Status.RESTING, Status.RESTING), Phase.READY),
        (READY, (DEAD, DEAD), Phase.FAILED),
        (DEAD, (READY, READY), Phase.FAILED),
    ],
)
def test_only_what_cannot_get_better_ends_a_deployment(
    router: Status, workers: tuple[Status, ...], then: Phase
) -> None:
    processes = [process(router, "router"), *(process(status) for status in workers)]
    assert phase_after(Phase.READY, PhaseInputs(planned(), processes)) is then


@pytest.mark.parametrize(
    ("router", "then"),
    [
        (ROUTER, Phase.DRAINING),
        (replace(ROUTER, local=False), Phase.STOPPING),
        (replace(ROUTER, kind="sglang"), Phase.STOPPING),
        (None, Phase.STOPPING),
    ],
)
def test_our_own_router_is_drained_first(router: RouterPlan | None, then: Phase) -> None:
    assert (
        phase_after(Phase.READY, PhaseInputs(planned(router), [process(READY)], stop=True)) is then
    )


def test_a_drain_ends_late_at_the_latest() -> None:
    seen = PhaseInputs(planned(), [process(READY)], stop=True)
    assert next_move(Phase.DRAINING, seen) is None
    assert phase_after(Phase.DRAINING, replace(seen, late=True)) is Phase.STOPPING


def test_a_stop_waits_for_the_processes() -> None:
    seen = PhaseInputs(planned(), [process(READY, lives=True)], stop=True)
    assert next_move(Phase.STOPPING, seen) is None
    assert next_move(Phase.STOPPING, replace(seen, late=True)) == PhaseMove(Phase.STOPPED)
    gone = replace(seen, processes=[process(Status.STOPPED)])
    assert next_move(Phase.STOPPING, gone) == PhaseMove(Phase.STOPPED)


def test_only_what_comes_to_an_end_has_a_limit() -> None:
    timeouts = planned().timeouts
    assert limit(Phase.STARTING, timeouts) == timeouts.start
    assert limit(Phase.READY, timeouts) == float("inf")
