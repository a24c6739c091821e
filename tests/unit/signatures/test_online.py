"""Refits by the clock: when one is due, and what it makes, worked out by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from toolkit.signatures import RefitWindow, warm_refit
from toolkit.signatures.matching import best_rows

X, P, Q, Y = (1.0, 0.0), (0.8, 0.6), (0.6, 0.8), (0.0, 1.0)
"""Cosines: X-P 0.8, X-Q 0.6, X-Y 0, P-Q 0.96, P-Y 0.6, Q-Y 0.8."""
TEN = 10**0.5
Vectors = Sequence[tuple[float, ...]]


def rows(vectors: Vectors) -> np.ndarray:
    return np.array(vectors, np.float32)


@pytest.mark.parametrize(
    ("old", "signatures", "new"),
    [
        # Two to a centroid. X and P are nearer to X, Q and Y to Y; X + P = (1.8, 0.6), Q + Y the
        # same the other way round. In the next round nobody moves.
        ((X, Y), (X, P, Q, Y), ((3 / TEN, 1 / TEN), (1 / TEN, 3 / TEN))),
        # All traffic is on one side: X must take two. A Q costs 0.4 - 0.2 = 0.2 more there than at
        # Y, a Y 1 more.
        ((X, Y), (Y, Y, Q, Q), (Q, Y)),
        # At most ceil(4 / 2): P (0.4 at Y, 0.2 at X) and one X go to Y, though all four are nearer
        # to X. P + X = (1.8, 0.6); then X and P are as near to that (0.9487) and nobody moves.
        ((X, Y), (X, X, X, P), (X, (3 / TEN, 1 / TEN))),
        # ceil(4 / 3) = 2 to each: X and Y have all their own, Q between them gets none and stays.
        ((X, Q, Y), (X, X, Y, Y), (X, Q, Y)),
        # One each: a centroid that is where its signature is does not move.
        ((Y, X), (X, Y), (Y, X)),
        # One for all: X + Y + Q + P = (2.4, 2.4).
        ((X,), (X, Y, Q, P), ((0.5**0.5, 0.5**0.5),)),
        # Two rounds, then rows change places. Costs of z, p, p, q at x: 1, 0.4, 0.4, 1, at y: 1,
        # 0.2, 0.2, 0.4. So x gets z and a p (2.0 in all; with both p it is 2.2), y a p and q. Means
        # (0.6, 0.8, 1) / 1.414 and (0.6, 1.4, 0.8) / 1.720. Now z, p, q cost 0.293, 0.293, 0.095 at
        # the first, 0.535, 0.140, 0.140 at the second: it is z and q to the first, both p to the
        # second: (0, 0.6, 1.8) / 1.897 and p. With x and y the first has 0 and 0.316, p 0.6 and
        # 0.8: x takes p, as 0.6 + 0.316 > 0 + 0.8.
        (
            ((1, 0, 0), (0, 1, 0)),
            ((0, 0, 1), (0.6, 0.8, 0), (0.6, 0.8, 0), (0, 0.6, 0.8)),
            ((0.6, 0.8, 0), (0, 1 / TEN, 3 / TEN)),
        ),
    ],
)
def test_by_hand(old: Vectors, signatures: Vectors, new: Vectors) -> None:
    for order in (1, -1):
        found = warm_refit(rows(signatures)[::order], rows(old))
        assert found == pytest.approx(np.array(new), abs=1e-6)
        assert found.dtype == np.float32


def test_it_begins_at_the_old_ones_and_does_not_look_for_better_ones() -> None:
    """Pairs across (cos 0.6, at 0.894 each) where pairs along (0.96, 0.99) would be nearer: from
    the middle nobody can leave, as its place would have to be taken."""
    p, q, r, s = (1, 0, 0), (0.96, 0.28, 0), (0.6, 0, 0.8), (0.576, 0.168, 0.8)
    across = [np.add(p, r), np.add(q, s)]
    old = rows([tuple(v / np.linalg.norm(v)) for v in across])
    assert warm_refit(rows((p, q, r, s)), old) == pytest.approx(old, abs=1e-6)


@pytest.mark.parametrize(
    ("signatures", "old", "said"),
    [
        ((X,), (X, Y), "1 signatures are too few for 2"),
        ((X, Y), np.zeros((0, 2)), "too few for 0"),
        (((1, 0, 0),), (X,), r"\(1, 3\) and centroids \(1, 2\)"),
        (((np.nan, 0),), (X,), "NaN"),
    ],
)
def test_what_cannot_be_fitted_is_refused(signatures: Any, old: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        warm_refit(rows(signatures), rows(old))


@st.composite
def traffic(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Old centroids and at least as many signatures, of whole counts, equal ones often."""
    k, d = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    count = draw(st.integers(k, 14))
    cells = st.lists(st.integers(0, 3), min_size=d, max_size=d).filter(any)
    made = [np.array(draw(st.lists(cells, min_size=n, max_size=n)), np.float32) for n in (k, count)]
    old, signatures = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in made)
    return old, signatures


@given(traffic())
def test_no_worker_loses_its_centroid(made: tuple[np.ndarray, np.ndarray]) -> None:
    old, signatures = made
    new = warm_refit(signatures, old)
    assert new.shape == old.shape and np.isfinite(new).all()
    assert np.linalg.norm(new, axis=1) == pytest.approx(1.0, abs=1e-5)


@given(traffic())
def test_rows_are_handed_out_as_the_hungarian_method_would(
    made: tuple[np.ndarray, np.ndarray],
) -> None:
    old, other = made
    taken = best_rows(old, other)
    assert len(set(taken.tolist())) == len(old)
    cosines = old @ other.T
    best = cosines[linear_sum_assignment(cosines, maximize=True)].sum()
    assert cosines[np.arange(len(old)), taken].sum() == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("sent", "centroids", "begun"),
    [
        # From 10.0 on, one each half second: the window is full at 15.0, then one each second.
        ([10 + n / 2 for n in range(16)], 3, [15.0, 16.0, 17.0]),
        # Only with requests: nobody comes between 15.0 and 16.7, and nothing is made up for.
        ([10.0, 12.0, 13.0, 15.0, 16.7, 17.2, 17.8], 1, [15.0, 16.7, 17.8]),
        # At 16.1 the one of 11.0 is over (5.1 s), that of 11.1 is not: 2 of the 3 wanted. At 16.2
        # there would be 2 again, at 16.3 there are 3.
        ([10.0, 11.0, 11.1, 16.11, 16.2, 16.3], 3, [16.3]),
        # A pause longer than the window: three must have come since.
        ([0.0, 1.0, 2.0, 60.0, 60.1, 60.2], 3, [60.2]),
        ([0.0, 4.99], 1, []),
    ],
)
def test_when_a_refit_is_due(sent: list[float], centroids: int, begun: list[float]) -> None:
    window, found = RefitWindow(1.0, 5.0), []
    for number, now in enumerate(sent):
        window.add(np.array([1.0, number], np.float32), now)
        if window.due(now, centroids):
            kept = window.begin(now)
            found.append(now)
            assert [v[1] for v in kept] == [i for i, t in enumerate(sent) if now - 5 <= t <= now]
            assert not window.due(now, centroids)
    assert found == begun


def test_requests_without_a_signature_count_for_nothing() -> None:
    window = RefitWindow(1.0, 5.0)
    window.add(np.zeros(2, np.float32), 0.0)
    window.add(rows([X])[0], 4.0)
    window.add(np.zeros(2, np.float32), 6.0)
    assert len(window) == 1 and not window.due(8.9, 1)
    assert window.due(9.0, 1) and not window.due(9.1, 1)


@pytest.mark.parametrize("times", [(0.0, 5.0), (1.0, -1.0), (float("nan"), 5.0), (1.0, np.inf)])
def test_times_are_above_zero(times: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        RefitWindow(*times)
