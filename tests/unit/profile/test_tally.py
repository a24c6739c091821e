"""Reducing expert ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.profile import tally
from toolkit.profile_folder.errors import ProfileError


@st.composite
def tokens(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    experts = draw(st.integers(2, 9))
    top_k = draw(st.integers(1, min(4, experts)))
    count, layers = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    order = rng.random((count, layers, experts)).argsort(axis=2)
    return order[:, :, :top_k].astype(np.int16), experts


@given(tokens())
def test_counts_are_tokens_that_used_an_expert(case: tuple[np.ndarray, int]) -> None:
    ids, experts = case
    counts = tally.counts(ids, experts)
    for layer in range(ids.shape[1]):
        for expert in range(experts):
            assert counts[layer, expert] == (ids[:, layer] == expert).any(axis=1).sum()


@given(tokens(), st.integers(0, 30))
def test_counts_and_affinity_add_up(case: tuple[np.ndarray, int], cut: int) -> None:
    ids, experts = case
    parts = ids[:cut], ids[cut:]
    assert (sum(tally.counts(p, experts) for p in parts) == tally.counts(ids, experts)).all()  # type: ignore[union-attr]
    shape = (ids.shape[1] - 1, experts, experts)
    whole, pieces = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    tally.add_affinity(whole, ids)
    for part in parts:
        tally.add_affinity(pieces, part)
    assert (whole == pieces).all()


@given(tokens())
def test_affinity_against_a_loop(case: tuple[np.ndarray, int]) -> None:
    ids, experts = case
    found = np.zeros((ids.shape[1] - 1, experts, experts), np.int64)
    tally.add_affinity(found, ids)
    wanted = np.zeros_like(found)
    for token in ids:
        for layer in range(len(token) - 1):
            for here in token[layer]:
                for there in token[layer + 1]:
                    wanted[layer, here, there] += 1
    assert (found == wanted).all()


def test_layers_that_wrote_nothing_are_left_out() -> None:
    ids = np.zeros((5, 3, 2), np.int16)
    ids[:, 1] = -1
    assert tally.captured_layers(ids) == [0, 2]


def test_nothing_captured_names_the_backend() -> None:
    with pytest.raises(ProfileError, match="moe-runner-backend"):
        tally.captured_layers(np.full((5, 3, 2), -1, np.int16))


def test_a_half_captured_layer_is_refused() -> None:
    ids = np.zeros((5, 3, 2), np.int16)
    ids[2, 1] = -1
    with pytest.raises(ProfileError, match="layer 1: 1 of 5 tokens"):
        tally.captured_layers(ids)


def test_an_expert_beyond_the_config_is_refused() -> None:
    with pytest.raises(ProfileError, match="expert 7 of 4"):
        tally.counts(np.full((1, 2, 1), 7, np.int16), 4)


def test_independent_layers_have_no_strong_pairs() -> None:
    rng = np.random.default_rng(0)
    load = rng.integers(1, 100, (2, 20))
    apart = np.stack([np.outer(load[0], load[1])]).astype(np.int64)
    assert tally.independent(apart) == pytest.approx(apart)
    diagonal = np.stack([np.diag(load[0])]).astype(np.int64)
    assert tally.strongest_share(diagonal, 0.05) == 1.0
    assert tally.strongest_share(tally.independent(diagonal), 0.05) < 0.5
