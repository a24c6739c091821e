"""Fits of step times."""

import numpy as np
import pytest

from toolkit.profile.latency import fit_steps

COLUMNS = ("decode", "seconds", "requests", "new_tokens", "kv_tokens")


def test_steps_whose_experts_are_not_known_do_not_count() -> None:
    """Each distinct expert takes 1 ms; in a third of the steps another rank ran a prompt."""
    rng = np.random.default_rng(0)
    rows = 600
    requests, kv = rng.integers(1, 32, rows), rng.integers(100, 9000, rows)
    distinct = rng.integers(8, 60, rows)
    seconds = 0.01 + 1e-4 * requests + 1e-6 * kv + 1e-3 * distinct
    steps = np.column_stack([np.ones(rows), seconds, requests, requests, kv, distinct])
    steps[::3, 1] = 0.5
    steps[::3, -1] = 0
    latency = fit_steps(steps, COLUMNS, np.zeros((0, 5)))
    assert latency.distinct is not None
    assert latency.distinct.coefficients[-1] == pytest.approx(1e-3, rel=1e-3)
    assert latency.distinct.samples == rows - rows // 3


def test_tokens_that_a_draft_gives_a_step_are_part_of_what_was_measured() -> None:
    rows = 200
    requests = np.arange(rows) % 8 + 1
    steps = np.column_stack(
        [np.ones(rows), np.full(rows, 0.01), requests, 2.5 * requests, np.full(rows, 500), requests]
    )
    steps[::10, 0] = 0  # a prompt of many tokens is no step of a draft
    steps[::10, 3] = 900
    latency = fit_steps(steps, COLUMNS, np.zeros((0, 5)))
    assert latency.accepted == pytest.approx(2.5)
    assert "a step gave a request 2.50 tokens" in latency.note
    steps[:, 3] = steps[:, 2]
    latency = fit_steps(steps, COLUMNS, np.zeros((0, 5)))
    assert latency.accepted is None and "draft" not in latency.note
