"""The watch: when a refit is due and why, when it is not, and that it follows the traffic."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.signatures.synthetic import synthetic_counts
from toolkit.signatures import (
    DriftRules,
    DriftWatch,
    Refit,
    SignatureSpace,
    balanced_kmeans,
    idf_weights,
    refit_recent,
)
from toolkit.signatures.nearness import nearness

RULES = DriftRules(recent=64, window=16, tolerance=0.05, wait_limit=40)
ONES = np.ones(3, dtype=np.float32)


def watch(expected: float = 0.9, workers: float | None = 4.0, rules: DriftRules = RULES) -> Any:
    return DriftWatch(3, expected, rules, workers=workers)


def feed(watch: DriftWatch, cosines: Any, nearest: Any = None) -> list[bool]:
    """Requests that take the workers in turn unless told otherwise."""
    rows = range(len(cosines)) if nearest is None else nearest
    pairs = zip(cosines, rows, strict=True)
    return [watch.observe(ONES, 9, cosine, row % 4) for cosine, row in pairs]


def test_nothing_before_the_window_is_full() -> None:
    watched = watch()
    assert not any(feed(watched, [0.1] * 15))
    assert watched.fit is None
    assert watched.workers is None
    assert feed(watched, [0.1]) == [True]
    assert watched.fit == pytest.approx(0.1)
    assert watched.reason == (
        "mean cosine 0.100 of the last 16 requests to their nearest centroid, 0.900 expected"
    )


@pytest.mark.parametrize(("cosine", "due"), [(0.86, False), (0.84, True), (0.97, False)])
def test_the_tolerance_decides(cosine: float, due: bool) -> None:
    watched = watch()
    assert feed(watched, [cosine] * 40)[-1] is due
    assert bool(watched.reason) is due


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(0.86, 1.0), min_size=1, max_size=120))
def test_never_due_while_every_request_fits(cosines: list[float]) -> None:
    assert not any(feed(watch(), cosines))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([0.2, 0.5, 0.84, 0.95]), min_size=1, max_size=80))
def test_due_exactly_when_the_window_and_its_ends_are_far(cosines: list[float]) -> None:
    watched = watch(workers=None)
    for number in range(1, len(cosines) + 1):
        due = watched.observe(ONES, 9, cosines[number - 1])
        last = cosines[max(0, number - 16) : number]
        parts = (last, last[:4], last[-4:])
        far = len(last) == 16 and all(np.mean(part) < 0.85 - 1e-9 for part in parts)
        assert due == far
        if len(last) == 16:
            assert watched.fit == pytest.approx(np.mean(last))


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 8), st.integers(0, 20))
def test_a_burst_of_half_a_window_is_no_drift(burst: int, before: int) -> None:
    watched = watch()
    assert not any(feed(watched, [0.92] * (16 + before)))
    assert not any(feed(watched, [0.1] * burst, [2] * burst))
    assert not any(feed(watched, [0.92] * 30))


def test_a_lasting_change_is_due_within_a_window() -> None:
    watched = watch()
    feed(watched, [0.92] * 30)
    due = feed(watched, [0.3] * 16)
    assert due[-1]
    assert due.index(True) >= 12, "before, the reservoir has too little of the new traffic"


def test_it_stays_due_until_the_traffic_returns() -> None:
    watched = watch()
    assert all(feed(watched, [0.5] * 50)[16:])
    assert feed(watched, [0.95] * 16)[-1] is False
    assert watched.reason == ""


def test_patience_after_a_reset_and_none_at_the_start() -> None:
    watched = watch()
    feed(watched, [0.5] * 16)
    watched.reset(0.9, 4.0)
    assert watched.reason == ""
    assert watched.fit is None
    due = feed(watched, [0.5] * 60)
    assert due.index(True) == 39


def test_a_crowd_is_a_reason_although_the_cosine_rises() -> None:
    watched = watch()
    feed(watched, [0.9] * 40)
    due = feed(watched, [0.99] * 16, [2] * 16)
    assert due[-1]
    assert watched.reason == (
        "the last 16 requests are nearest to 1.0 workers in effect, 4.0 expected"
    )
    assert watched.workers == 1.0


def test_traffic_that_always_crowded_is_no_news() -> None:
    """No number of workers given: the first full window is what is normal."""
    watched = watch(workers=None)
    assert not any(feed(watched, [0.9] * 100, [1, 1, 1, 0] * 25))
    assert watched.expected_workers == pytest.approx(16 * 15 / (12 * 11 + 4 * 3))
    assert feed(watched, [0.9] * 16, [1] * 16)[-1]


def test_one_worker_cannot_be_crowded() -> None:
    watched = watch(workers=1.0)
    assert not any(feed(watched, [0.9] * 100, [0] * 100))


def test_zero_signatures_and_unknown_workers_are_no_crowd() -> None:
    watched = watch(expected=0.0)
    assert not any(feed(watched, [0.0] * 60, [0] * 60))
    assert watched.workers is None
    for _ in range(60):
        assert not watched.observe(ONES, 9, 0.9)


def result(**changes: Any) -> Refit:
    fields: dict[str, Any] = {
        "centroids": np.eye(3, dtype=np.float32), "cosine_old": 0.6, "cosine_new": 0.8,
        "distinct_old": None, "distinct_new": None, "moved": 0.5, "worthwhile": True,
        "workers_old": 2.0, "workers_new": 3.5,
    }  # fmt: skip
    return Refit(**fields | changes)


def test_settle_expects_what_the_refit_measured() -> None:
    watched = watch()
    watched.settle(result())
    assert (watched.expected, watched.expected_workers) == (0.8, 3.5)
    watched.settle(result(worthwhile=False))
    assert (watched.expected, watched.expected_workers) == (0.6, 2.0)


def test_a_declined_refit_is_not_tried_again_while_nothing_gets_worse() -> None:
    watched = watch()
    assert feed(watched, [0.6] * 16)[-1]
    watched.settle(result(worthwhile=False, workers_old=4.0))
    assert not any(feed(watched, [0.59] * 200))
    assert feed(watched, [0.4] * 16)[-1]


def test_a_provisional_refit_is_followed_by_another() -> None:
    watched = watch()
    watched.settle(result(provisional=True, workers_new=4.0))
    due = feed(watched, [0.85] * 60)
    assert due.index(True) == 39
    assert "few requests of the new traffic" in watched.reason
    watched.settle(result(provisional=True, worthwhile=False, workers_old=4.0))
    assert not any(feed(watched, [0.85] * 60))


@pytest.mark.parametrize("expected", [1.5, -2.0, float("nan")])
def test_an_expectation_that_is_no_cosine(expected: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        watch(expected)
    with pytest.raises(ValueError, match="expected"):
        watch().reset(expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones(4), 9, 0.5), r"expected \(3,\)"),
        ((np.ones((1, 3)), 9, 0.5), r"expected \(3,\)"),
        ((np.array([1, -1, 0]), 9, 0.5), "negative"),
        ((ONES, 0, 0.5), "tokens"),
        ((ONES, 9, 1.2), "cosine"),
        ((ONES, 9, float("nan")), "cosine"),
        ((ONES, 9, 0.5, -1), "nearest = -1"),
    ],
)
def test_a_request_that_is_refused_is_not_counted(arguments: Any, words: str) -> None:
    watched = watch()
    feed(watched, [0.9] * 15)
    with pytest.raises(ValueError, match=words):
        watched.observe(*arguments)
    assert watched.fit is None
    assert len(watched.recent()) == 15


@pytest.mark.slow
def test_it_follows_traffic_that_moves_and_then_rests() -> None:
    """Two domains, then four others: at most a few refits, and nearly what a fresh fit gives."""
    counts, _, _, domains = synthetic_counts(3000, 6, 48, 4, seed=2)
    flat = counts.reshape(len(counts), -1)
    before = np.flatnonzero(domains < 2)
    after = np.flatnonzero((domains >= 2) & (domains < 6))
    space = SignatureSpace(idf_weights(counts[before]), tuple(range(6)))
    signatures = space.signatures(counts)
    new, unseen = after[::2], after[1::2]
    centroids = balanced_kmeans(signatures[before[::2]], 4).centroids
    known = nearness(signatures[before[1::2]], centroids)
    watched = DriftWatch(space.dimensions, known.cosine, workers=known.workers)
    stale = nearness(signatures[unseen], centroids).cosine
    rng = np.random.default_rng(0)
    refits = []
    for number in [*rng.choice(before, 600), *rng.choice(new, 1200)]:
        cosines = centroids @ signatures[number]
        nearest = int(cosines.argmax())
        if not watched.observe(flat[number], 900, float(cosines[nearest]), nearest):
            continue
        refit = refit_recent(space, watched.recent(), centroids)
        refits.append(refit.worthwhile)
        centroids = refit.centroids if refit.worthwhile else centroids
        watched.settle(refit)
    fresh = nearness(signatures[unseen], balanced_kmeans(signatures[new], 4).centroids).cosine
    reached = nearness(signatures[unseen], centroids).cosine
    assert refits[0]
    assert len(refits) <= 4
    assert reached > stale + 0.8 * (fresh - stale)
