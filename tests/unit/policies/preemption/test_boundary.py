"""When a best-effort pass yields: the shipped policies, one's own, and the bounds around them."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.preemption.boundary import Boundary, Urgent
from toolkit.policies.preemption.bounds import Bounds, Paused
from toolkit.policies.preemption.deadline import Deadline
from toolkit.policies.preemption.fair import Fair
from toolkit.policies.preemption.named import boundary_policy
from toolkit.policies.preemption.strict import Strict


def state(*urgent: Urgent, **given: Any) -> Boundary:
    """Ten of forty layers are done, two at a time, a slice takes 10 ms."""
    about = {"done": 10, "layers": 40, "slice": 2, "slice_s": 0.01, "ran_s": 0.05}
    return Boundary(**{**about, "paused_s": 0.0, "pauses": 0, "urgent": urgent, **given})


SECONDS = st.floats(0, 20)
URGENT = st.builds(Urgent, st.integers(1, 4000), SECONDS, SECONDS, SECONDS | st.just(inf))
STATES = st.builds(
    lambda urgent, ran, paused, slice_s, done: state(
        *urgent, ran_s=ran, paused_s=paused, slice_s=slice_s, done=done
    ),
    st.lists(URGENT, min_size=1, max_size=5),
    *(SECONDS, SECONDS, SECONDS, st.integers(0, 39)),
)


def test_what_is_left_of_a_pass() -> None:
    assert state().left_s == pytest.approx(0.15)
    assert state(done=39).left_s == pytest.approx(0.01)
    assert state(done=40).left_s == 0


@given(STATES)
def test_strict_yields_to_anybody(boundary: Boundary) -> None:
    assert Strict()(boundary) == "yield"


def test_strict_goes_on_when_nobody_waits() -> None:
    assert Strict()(state()) == "continue"


@pytest.mark.parametrize(
    ("urgent", "expected"),
    [
        ([Urgent(9, 0.0, 0.02, 0.2)], "continue"),  # 0 + 10 + 20 + 10 of margin < 200 ms
        ([Urgent(9, 0.17, 0.02, 0.2)], "yield"),  # 170 + 10 + 20 + 10 > 200
        ([Urgent(9, 0.16, 0.02, 0.2)], "continue"),  # exactly in time
        ([Urgent(9, 5.0, 0.02, 0.2)], "yield"),  # late already
        ([Urgent(9, 5.0, 0.02)], "continue"),  # no SLO
        ([Urgent(9, 0.1, 0.1, 9.0), Urgent(9, 0.1, 0.05, 0.2)], "yield"),  # behind the first
        ([Urgent(9, 0.1, 0.1, 9.0), Urgent(9, 0.0, 0.05, 0.2)], "continue"),
    ],
)
def test_deadline_yields_at_the_last_boundary_that_keeps_the_slo(
    urgent: list[Urgent], expected: str
) -> None:
    assert Deadline(0.01 - 1e-9)(state(*urgent)) == expected


@given(STATES)
def test_deadline_stops_nothing_that_strict_does_not(boundary: Boundary) -> None:
    slos = [each.slo_s for each in boundary.urgent]
    said = Deadline()(boundary)
    assert said in ("yield", "continue")
    if all(slo == inf for slo in slos):
        assert said == "continue"
    if any(each.waited_s > each.slo_s for each in boundary.urgent):
        assert said == "yield"


@given(STATES, st.floats(0.01, 0.99))
def test_fair_yields_only_where_the_share_is_kept_afterwards(
    boundary: Boundary, share: float
) -> None:
    if Fair(share)(boundary) == "yield":
        after = boundary.ran_s + boundary.paused_s + boundary.takes_s
        assert boundary.ran_s >= share * after
    assert Fair(1)(boundary) == "continue"


@given(st.floats(0.05, 0.95), st.lists(st.floats(0.001, 0.5), min_size=1, max_size=60))
def test_a_fair_pass_takes_its_own_time_by_its_share_at_most(
    share: float, arrivals: list[float]
) -> None:
    """A closed loop of latency-sensitive requests, each as long as it says; a pass of 40 slices of
    10 ms."""
    policy, ran, paused, waiting = Fair(share), 0.0, 0.0, list(arrivals)
    for done in range(1, 40):
        ran += 0.01
        while waiting:
            asked = state(Urgent(1, 0.0, waiting[0]), ran_s=ran, paused_s=paused, done=done)
            if policy(asked) == "continue":
                break
            paused += waiting.pop(0)
        assert ran >= share * (ran + paused) - 1e-9


@pytest.mark.parametrize(
    ("name", "kind"), [("strict", Strict), ("deadline", Deadline), ("fair@0.7", Fair)]
)
def test_shipped_ones_by_name(name: str, kind: type) -> None:
    assert isinstance(boundary_policy(name), kind)


def patient(boundary: Boundary) -> str:
    return "yield" if any(each.waited_s > 0.05 for each in boundary.urgent) else "continue"


def test_ones_own_by_name() -> None:
    own = boundary_policy(f"{__name__}:patient")
    assert own(state(Urgent(1, 0.04))) == "continue"
    assert own(state(Urgent(1, 0.06))) == "yield"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stric", "there are strict"),
        ("strict@1", "no knob"),
        ("fair@x", "no number"),
        ("fair@0", "above 0"),
        ("deadline@-1", "at least 0"),
        ("deadline@nan", "at least 0"),
        ("no_such_module:f", "cannot be loaded"),
        (f"{__name__}:nothing", "cannot be loaded"),
        (f"{__name__}:SECONDS", "no callable"),
        ("toolkit.policies.preemption.strict:Strict", "is a class"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        boundary_policy(name)


@pytest.mark.parametrize("given", [{"pauses": -1}, {"seconds": -0.1}, {"seconds": nan}])
def test_bounds_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        Bounds(**given)


def exact_seconds(least: int, most: int) -> st.SearchStrategy[float]:
    """Parts of 1,024, whose sums are not rounded."""
    return st.integers(least, most).map(lambda parts: parts / 1024)


@given(
    st.builds(Bounds, st.integers(0, 8), exact_seconds(0, 3072)),
    st.lists(exact_seconds(1, 409), max_size=200),
)
def test_nobody_stands_still_for_longer_than_the_bounds_say(
    bounds: Bounds, batches: list[float]
) -> None:
    """Latency-sensitive requests come without end, and a strict policy yields to each of them."""
    paused, left = Paused(), list(batches)
    while left and bounds.may_begin(paused):
        since = 0.0
        while left and bounds.may_go_on(paused, since):
            since += left.pop(0)
        paused.pauses += 1
        paused.seconds += since
    assert paused.pauses <= bounds.pauses
    assert paused.seconds < bounds.seconds + 0.4 or not paused.seconds
