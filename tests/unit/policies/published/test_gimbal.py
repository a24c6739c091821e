"""Gimbal's Algorithm 1 as published, worked out by hand beside ours."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import Load, RequestView, WorkerView, make_policy

POOL = 10_000


class Reading(NamedTuple):
    """KV tokens in use, tokens that wait, tokens sent since."""

    used: int
    waiting: int = 0
    sent: int = 0


def fleet(*readings: Reading | None, down: int | None = None) -> list[WorkerView]:
    return [
        WorkerView(
            f"e{i}",
            healthy=i != down,
            load=one and Load(0, 0, one.used, POOL, one.waiting, sent_tokens=one.sent),
        )
        for i, one in enumerate(readings)
    ]


IDLE = fleet(Reading(100), Reading(100), Reading(100))
Steps = list[tuple[list[WorkerView], str | None]]


def chosen(name: str, steps: Steps) -> list[int]:
    policy = make_policy(name)
    made = [policy.choose(workers, RequestView(user=user)) for workers, user in steps]
    return [each.index for each in made if each is not None]


@pytest.mark.parametrize(
    ("steps", "paper", "ours"),
    [
        # Line 1 alone: the list in order, from its beginning again.
        ([(IDLE, None)] * 4, [0, 1, 2, 0], [0, 1, 2, 0]),
        # Line 17: the second request of ann goes where her first one went. The list moves on at
        # hers too, so bob, whose is the third request, gets the third engine; ours gives him the
        # one after those that were used.
        ([(IDLE, "ann"), (IDLE, "ann"), (IDLE, "bob")], [0, 0, 2], [0, 0, 1]),
        # Line 7: 0.95 >= 0.9 and 0.95 - 0.80 >= 0.10. Then line 1: the second of the list; ours: of
        # the two that were never chosen the first.
        ([(fleet(Reading(9500), Reading(9300), Reading(8000)), None), (IDLE, None)],
         [2, 1], [2, 0]),
        # Line 4, equal ones: argmin is the first, each time. Ours takes turns.
        ([(fleet(Reading(9500), Reading(8000), Reading(8000)), None)] * 2, [1, 1], [1, 2]),
        # Line 12: 0.90 - 0.90 < 0.10, 9000 + 3001 - 9000 > 3000.
        ([(fleet(Reading(9000, 3001), Reading(9000)), None)], [1], [1]),
        # Line 10, not more than theta_load: the next engine.
        ([(fleet(Reading(9000, 3000), Reading(9000)), None)], [0], [0]),
        # What was sent since the reading: 0.90 and 0.90, 9000 and 9000, so line 1. Ours counts it:
        # (9000 + 1500) / 10000 = 1.05 and 1.05 - 0.90 >= 0.10.
        ([(fleet(Reading(9000, sent=1500), Reading(9000)), None)], [0], [1]),
        # The same below theta_kv: 0.85 < 0.9, so ann stays; ours: 0.95 >= 0.9, 0.95 - 0.80 >= 0.10.
        ([(IDLE[:2], "ann"), (fleet(Reading(8500, sent=1000), Reading(8000)), "ann")],
         [0, 0], [0, 1]),
        # Line 17 asks the map. Ours does not send anybody to an engine without a load.
        ([(IDLE[:2], "ann"), (fleet(None, Reading(100)), "ann")], [0, 0], [0, 1]),
        # An engine that is down is in neither list; ann's next one is e1, and stays.
        ([(IDLE, "ann"), (fleet(*[Reading(100)] * 3, down=0), "ann"), (IDLE, "ann")],
         [0, 1, 1], [0, 1, 1]),
        # Line 2: no data at all, so line 1, also for ann; and line 21 moves her.
        ([(IDLE[:2], "ann"), (fleet(None, None), "ann"), (IDLE[:2], "ann")], [0, 1, 1], [0, 1, 1]),
    ],
)  # fmt: skip
def test_by_hand(steps: Steps, paper: list[int], ours: list[int]) -> None:
    assert chosen("gimbal@paper", steps) == paper
    assert chosen("gimbal", steps) == ours


def test_thresholds_in_the_name() -> None:
    """0.6 >= 0.5 and 0.6 - 0.5 >= 0.1 with the name's, below 0.9 with the paper's."""
    steps = [(fleet(Reading(6000), Reading(5000)), None)]
    assert chosen("gimbal@paper:0.5", steps) == [1]  # type: ignore[arg-type]
    assert chosen("gimbal@paper:0.5:0.2", steps) == [0]  # type: ignore[arg-type]
    assert chosen("gimbal@paper", steps) == [0]  # type: ignore[arg-type]


readings = st.lists(
    st.none() | st.builds(Reading, st.sampled_from([100, 8000, 9000, 9600]), st.just(0)),
    min_size=2,
    max_size=4,
)


@given(st.lists(st.tuples(readings, st.sampled_from([None, "ann", "bob"])), max_size=8), st.data())
def test_what_was_sent_since_changes_nothing(steps: Any, data: st.DataObject) -> None:
    bare, sent = [], []
    for seen, user in steps:
        bare.append((fleet(*seen), user))
        more = [one and one._replace(sent=data.draw(st.integers(0, 9000))) for one in seen]
        sent.append((fleet(*more), user))
    assert chosen("gimbal@paper", bare) == chosen("gimbal@paper", sent)
