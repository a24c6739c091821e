"""Which part of a run's decode steps is judged: the time in which a closed loop was full."""

import numpy as np
import pytest

from patches.steps.step_log import FIELDS
from tests.unit.bench.steps import decode, done, rank, step
from toolkit.bench.client import Sample
from toolkit.bench.decode import DecodeSteps, RankSteps
from toolkit.bench.runner import FEW_STEPS, BenchLoad, RunOutcome

CLOSED = BenchLoad(concurrency=2)
STEPS = 100


def samples(*spans: tuple[float, float]) -> list[Sample]:
    """Requests from a start to an end, s."""
    return [
        Sample(success=True, start_time=start, latency=end - start, output_len=2)
        for start, end in spans
    ]


def worker(name: str, ends: list[float]) -> RankSteps:
    """A step ends at each of these times, and a request with every tenth of them."""
    return rank(
        name,
        [step(2, 5, end=end) for end in ends],
        [done(5, 0.1, 0.1, end=end) for end in ends[::10]],
    )


def outcome(found: DecodeSteps | None, played: list[Sample]) -> RunOutcome:
    return RunOutcome(played, 100.0, 0.0, None, None, [], found)


def ends(rows: np.ndarray) -> list[float]:
    return rows[:, FIELDS.index("end")].tolist()


FULL = samples((0.0, 20.0), (1.0, 45.0), (20.0, 60.0), (45.0, 95.0), (60.0, 99.0))
"""Two in flight: the first answer ends at 20, the last request starts at 60."""


def test_from_the_first_answers_end_to_the_last_requests_start() -> None:
    seconds = [float(n) for n in range(STEPS)]
    all_of_it = decode(worker("a", seconds), worker("b", [second + 0.5 for second in seconds]))
    part = outcome(all_of_it, FULL).while_full()
    assert part is not None
    first, second = part.ranks
    assert (first.name, second.name) == ("a", "b")
    assert ends(first.steps) == [float(n) for n in range(20, 60)]
    assert ends(second.steps) == [n + 0.5 for n in range(20, 60)]
    assert first.finished[:, 0].tolist() == [20.0, 30.0, 40.0, 50.0]
    assert part.metrics()["decode_steps"] == 80
    assert (part.columns, part.own_clock) == (all_of_it.columns, all_of_it.own_clock)


def test_the_order_in_which_answers_came_does_not_matter() -> None:
    found = decode(worker("a", [float(n) for n in range(STEPS)]))
    part = outcome(found, FULL[::-1]).while_full()
    assert part is not None
    assert ends(part.ranks[0].steps) == [float(n) for n in range(20, 60)]


def test_without_samples_or_workers_that_log_there_is_nothing_to_cut() -> None:
    found = decode(worker("a", [float(n) for n in range(STEPS)]))
    assert outcome(found, []).while_full() is found
    assert outcome(None, FULL).while_full() is None


@pytest.mark.parametrize(("within", "cut"), [(FEW_STEPS, True), (FEW_STEPS - 1, False)])
def test_every_worker_must_have_enough_steps_in_it(within: int, cut: bool) -> None:
    """One that was idle in that time would be judged by a handful of steps."""
    busy = worker("busy", [float(n) for n in range(STEPS)])
    few = [20.0 + n for n in range(within)] + [70.0 + n / 10 for n in range(STEPS)]
    found = decode(busy, worker("idle", few))
    part = outcome(found, FULL).while_full()
    assert part is not None
    assert (part is not found) == cut
    assert [len(each.steps) for each in part.ranks] == (
        [40, within] if cut else [STEPS, within + STEPS]
    )


def test_more_in_flight_than_requests_is_never_full() -> None:
    """All start before the first ends: there is no such time, so all of it counts."""
    found = decode(worker("a", [float(n) for n in range(STEPS)]))
    played = samples((0.0, 50.0), (0.1, 60.0), (0.2, 99.0))
    assert outcome(found, played).while_full() is found
