"""ELDR as published and as its authors' program has it, worked out by hand beside ours."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import RequestView, WorkerView, make_policy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_signatures import InflightSignatures

SIGNATURE = np.array([1.0, 0.0], np.float32)
"""Its cosine with the centroid (c, sqrt(1 - c^2)) is c."""


class Case(NamedTuple):
    """Cosines with the centroids, requests on the workers; slots of each, 0 without a limit; on
    whom a request with the very same signature runs."""

    cosines: tuple[float, ...]
    queues: tuple[int, ...]
    slots: int = 0
    resident: int | None = None


def chosen(name: str, case: Case) -> int:
    policy = make_policy(name, side="decode")
    assert policy.locality is not None
    rows = np.array([(c, (1 - c * c) ** 0.5) for c in case.cosines], np.float32)
    owner = {(f"w{i}", 0): i for i in range(len(rows))}
    policy.locality.centroids = Centroids(rows, owner)  # type: ignore[arg-type]
    policy.locality.inflight_signatures = InflightSignatures(2)
    if case.resident is not None:
        policy.locality.inflight_signatures.add((f"w{case.resident}", 0), SIGNATURE)
    workers = [WorkerView(f"w{i}", inflight=n, slots=case.slots) for i, n in enumerate(case.queues)]
    decision = policy.choose(workers, RequestView(signature=SIGNATURE))
    assert decision is not None
    return decision.index


@pytest.mark.parametrize(
    ("case", "paper", "artifact", "ours"),
    [
        # One worker is nearest and nobody has more than another. 0.9 - 0.1 = 0.8 > 0.5, so the
        # paper's band is w0; the program's is w0 and w1, and w0 stands first.
        (Case((0.9, 0.5), (2, 2)), 0, 0, 0),
        # The band reaches to 0.80: w1 at 0.81 is in it and has fewer.
        (Case((0.9, 0.81), (1, 0)), 1, 1, 1),
        # w1 at 0.79 is not, whatever the queues. The program takes the two nearest in place of one.
        # Ours: the mean is 1, so w0 has (2 - 1) / (1 * 0.5) = 2 off, -1.1, and w1 is the nearest.
        (Case((0.9, 0.79), (2, 0)), 0, 1, 1),
        # The band is w0 (0.90) and w1 (0.85), w1 has 4 < 5, and w2 with nothing to do is outside.
        # Ours: mean 3, unit 1.5: 0.90 - 2/1.5 = -0.43, 0.85 - 1/1.5 = 0.18, w2 keeps its 0.60.
        (Case((0.9, 0.85, 0.6), (5, 4, 0)), 1, 1, 2),
        # No slot is free anywhere, no queue is above the mean of 4: all take the nearest.
        (Case((0.9, 0.5), (4, 4), slots=4), 0, 0, 0),
        # Now w1 has a slot. Paper: the band is w0 alone. Program: w0 and w1, 3 < 4. Ours: mean
        # 3.5, unit 1.75: 0.9 - 0.5/1.75 = 0.61, and w1 at 0.5 is farther.
        (Case((0.9, 0.5), (4, 3), slots=4), 0, 1, 0),
        # The same signature runs on w1: ours holds it for as near as 1.0, nearer than 0.9, and of
        # equal queues the nearer one decides. For the others w1 stays at 0.5.
        (Case((0.9, 0.5), (1, 1), resident=1), 0, 0, 1),
        # Three workers, the second nearest is w2: 0.7 > 0.3, and 1 < 2. Ours: mean 1, unit 0.5:
        # 0.9 - 1/0.5 = -1.1, and w2 at the mean keeps its 0.7.
        (Case((0.9, 0.3, 0.7), (2, 0, 1)), 0, 2, 2),
        # Two in the band with the same queue: the paper does not say (here the nearer, w1), the
        # program takes the first.
        (Case((0.84, 0.9), (3, 3)), 1, 0, 1),
        # Two in the band already: the program adds nobody, though w2 has nothing to do.
        # Ours: mean 4/3, unit 2/3: 0.90 - (2 - 4/3)/(2/3) = -0.1, 0.85 - 1 = -0.15, w2 0.60.
        (Case((0.9, 0.85, 0.6), (2, 2, 0)), 0, 0, 2),
    ],
)
def test_by_hand(case: Case, paper: int, artifact: int, ours: int) -> None:
    assert chosen("eldr@paper", case) == paper
    assert chosen("eldr@artifact", case) == artifact
    assert chosen("eldr", case) == ours


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 0.9 - 0.5 = 0.4 <= 0.5: both are in the band, w1 has fewer.
        ("eldr@paper:0.5", 1),
        ("eldr@paper:0", 0),
        # Pure locality: the program's second one only comes in at tau > 0.
        ("eldr@artifact:0", 0),
        ("eldr@artifact:0.01", 1),
    ],
)
def test_tau_in_the_name(name: str, expected: int) -> None:
    assert chosen(name, Case((0.9, 0.5), (2, 1))) == expected


def test_ranks_that_share_their_experts_are_one_of_the_two() -> None:
    """a (0.9) is one worker and b (0.5) the second; of their four ranks b's first has fewest."""
    policy = make_policy("eldr@artifact")
    assert policy.locality is not None
    rows = np.array([(0.9, 0.19**0.5), (0.5, 0.75**0.5)], np.float32)
    policy.locality.centroids = Centroids(rows, {("a", None): 0, ("b", None): 1})
    ranks = [("a", 0, 5), ("a", 1, 4), ("b", 0, 3), ("b", 1, 9)]
    workers = [
        WorkerView(name, dp_rank=rank, inflight=n, shares_experts=True) for name, rank, n in ranks
    ]
    decision = policy.choose(workers, RequestView(signature=SIGNATURE))
    assert decision is not None and decision.index == 2
    assert "band of 2" in decision.reason
    alone = policy.choose(workers[1:2], RequestView(signature=SIGNATURE))
    assert alone is not None and "band of 1" in alone.reason


@pytest.mark.parametrize("name", ["eldr@paper", "eldr@artifact"])
def test_who_has_no_signature_goes_by_load(name: str) -> None:
    policy = make_policy(name)
    workers = [
        WorkerView("a", inflight=2),
        WorkerView("b", inflight=1),
        WorkerView("c", inflight=1),
    ]
    chosen = [policy.choose(workers, RequestView(signature="lost")).index for _ in range(3)]  # type: ignore[union-attr]
    assert chosen == [1, 2, 1], "equal ones take turns"


cosines = st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=1, max_size=5)


@given(cosines, st.data())
def test_what_we_added_changes_nothing(values: list[float], data: st.DataObject) -> None:
    """Residents and slots do not; and the choice is in the band, with the fewest requests there."""
    count = len(values)
    queues = data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    slots = data.draw(st.integers(1, 6))
    resident = data.draw(st.integers(0, count - 1))
    bare = Case(tuple(values), tuple(queues))
    for name in ("eldr@paper", "eldr@artifact"):
        assert chosen(name, bare) == chosen(name, bare._replace(slots=slots, resident=resident))
    at = chosen("eldr@paper", bare)
    edge = max(values) - 0.1
    # Float32 cosines on the band's very edge may fall on either side of it.
    assert values[at] >= edge - 1e-6
    surely = [queue for queue, c in zip(queues, values, strict=True) if c > edge + 1e-6]
    assert queues[at] <= min(surely)
