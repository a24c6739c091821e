"""A worker that fails is left alone, is probed before it comes back, and never all are out."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.ejection import (
    CONSECUTIVE,
    FIRST_REST_S,
    FIRST_S,
    FORGIVEN_S,
    FRESH_S,
    WARNED_S,
    Ejection,
    usable,
)


def ejected(now: float = 0.0) -> Ejection:
    record = Ejection()
    for _ in range(CONSECUTIVE):
        record.failed(now)
    return record


def test_failures_in_a_row_eject_and_a_good_answer_breaks_the_row() -> None:
    record = Ejection()
    for _ in range(2):
        assert not any(record.failed(0.0) for _ in range(CONSECUTIVE - 1))
        record.answered(0.0)
    assert record.open_at(0.0)
    assert [record.failed(0.0) for _ in range(CONSECUTIVE)][-1]
    assert not record.open_at(0.0)


def test_one_that_fails_every_second_request_is_ejected_too() -> None:
    record = Ejection()
    for _ in range(10):
        record.answered(0.0)
        if record.failed(0.0):
            return
    raise AssertionError("never ejected")


def test_one_request_at_a_time_probes_and_a_bad_probe_doubles_the_time() -> None:
    record = ejected()
    assert not record.open_at(FIRST_S - 0.1)
    assert record.open_at(FIRST_S) and record.posted(FIRST_S)
    assert not record.open_at(FIRST_S), "one probe at a time"
    assert record.failed(FIRST_S + 1)
    assert not record.open_at(FIRST_S + 1 + 2 * FIRST_S - 0.1)
    assert record.posted(FIRST_S + 1 + 2 * FIRST_S)
    record.answered(20.0)
    assert record.open_at(20.0) and not record.out


def test_a_probe_without_an_outcome_makes_room_for_another() -> None:
    record = ejected()
    assert record.posted(FIRST_S)
    record.unknown()
    assert record.open_at(FIRST_S) and record.posted(FIRST_S)


def test_who_is_full_rests_as_long_as_it_asks_and_longer_each_time() -> None:
    record = Ejection()
    record.full(0.0)
    assert not record.open_at(FIRST_REST_S - 0.1)
    assert record.posted(FIRST_REST_S)
    record.full(FIRST_REST_S)
    assert not record.open_at(2.5 * FIRST_REST_S)
    other = Ejection()
    other.full(0.0, asked_s=7.0)
    assert not other.open_at(6.9) and other.open_at(7.0)
    assert record.ejections == other.ejections == 0, "that is no failure"


def test_late_failures_of_what_ran_before_do_not_lengthen_it() -> None:
    record = ejected()
    for _ in range(50):
        record.failed(1.0)
        record.full(1.0)
    assert record.until == FIRST_S


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    st.floats(0, 1),
)
def test_never_more_than_the_share_is_left_out(
    ranks: list[tuple[bool, bool]], share: float
) -> None:
    healthy = [up for up, _ in ranks]
    records = [ejected() if out else Ejection() for _, out in ranks]
    chosen = usable(healthy, records, 0.0, share)
    assert all(up for up, ok in zip(healthy, chosen, strict=True) if ok)
    if any(healthy):
        assert any(chosen)
        assert sum(healthy) - sum(chosen) <= share * sum(healthy)
    # Nobody is passed over who is not out.
    assert all(ok for (up, out), ok in zip(ranks, chosen, strict=True) if up and not out)


def test_only_a_due_request_is_the_probe() -> None:
    record = ejected()
    assert not record.posted(FIRST_S - 0.1)
    assert record.posted(FIRST_S) and not record.posted(FIRST_S)
    assert not Ejection().posted(0.0), "nobody is out"


def test_a_failure_of_long_ago_does_not_lengthen_the_next_ejection() -> None:
    record, later = ejected(), FORGIVEN_S + 1.0
    record.answered(later)
    assert [record.failed(later) for _ in range(CONSECUTIVE)][-1]
    assert record.until == later + FIRST_S


def test_another_process_begins_anew() -> None:
    record = ejected()
    record.reset()
    assert record.open_at(0.0) and not record.out
    assert not any(record.failed(0.0) for _ in range(CONSECUTIVE - 1))
    assert record.failed(0.0) and record.until == FIRST_S, "as the first time"
    assert record.ejections == 2, "that is counted for the worker"


STEPS = st.lists(st.tuples(st.floats(0, 20), st.sampled_from(["warned", "sent", "answered"])))


@given(STEPS)
def test_what_other_routers_say_of_a_worker_that_is_well_here_never_takes_it_away(
    steps: list[tuple[float, str]],
) -> None:
    """At any time a request may go there, or one is there that will bring it back."""
    record, now, there, probations = Ejection(), 0.0, 0, []
    for after, what in steps:
        now += after
        if what == "warned":
            if record.warned(now):
                probations.append(now)
        elif what == "sent":
            if record.open_at(now):
                record.posted(now)
                there += 1
        elif there:
            there -= 1
            record.answered(now)
            assert record.open_at(now) and not record.out
        assert record.open_at(now) or there
    assert record.ejections == 0 and record.until == 0.0
    assert all(late - early >= WARNED_S for early, late in pairwise(probations))


def test_a_worker_that_others_warn_of_is_out_after_one_failure_of_its_own() -> None:
    record = Ejection()
    assert record.warned(1.0)
    assert record.posted(1.0) and not record.open_at(1.0), "one request at a time"
    assert record.failed(2.0), "here it would have taken more"
    assert not record.open_at(2.0 + FIRST_S - 0.1) and record.open_at(2.0 + FIRST_S)


def test_one_that_has_just_answered_goes_on_and_is_out_after_one_failure_too() -> None:
    record = Ejection()
    record.answered(1.0)
    assert not record.warned(1.0 + FRESH_S - 0.1) and not record.out
    assert record.open_at(6.0) and not record.posted(6.0)
    assert record.failed(6.0), "here it would have taken more"
    well = Ejection()
    well.answered(1.0)
    well.warned(2.0)
    well.answered(3.0)
    assert not well.failed(4.0), "its own evidence is newer"


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.floats(0, 1))
def test_warnings_of_all_workers_at_once_leave_enough_to_serve(
    healthy: list[bool], share: float
) -> None:
    """As one router sends them whose own network is broken; each worker has its probe already."""
    records = [Ejection() for _ in healthy]
    for record in records:
        record.warned(1.0)
        record.posted(1.0)
    chosen = usable(healthy, records, 1.0, share)
    assert sum(chosen) >= min(sum(healthy), max(1, math.ceil((1 - share) * sum(healthy))))
