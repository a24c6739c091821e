"""IDF weights and signatures: the formula, additivity, unit or zero norm, refusals."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolkit.signatures import Calibration, SignatureSpace, idf_weights
from toolkit.signatures.calibration import canonical_order

LAYERS, EXPERTS = 4, 6
counts_of = arrays.arrays(
    np.int64,
    st.tuples(st.integers(1, 9), st.just(LAYERS), st.just(EXPERTS)),
    elements=st.integers(0, 1000) | st.just(0),
)
weights_of = arrays.arrays(
    np.float32, (LAYERS, EXPERTS), elements=st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0])
)
masks = st.lists(st.integers(0, LAYERS - 1), min_size=1, unique=True).map(tuple)


@given(counts_of)
@settings(deadline=None)
def test_idf_formula(counts: Any) -> None:
    weights = idf_weights(counts)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            df = sum(int(request[layer, expert] > 0) for request in counts)
            expected = math.log((len(counts) + 1) / (df + 1))
            assert weights[layer, expert] == pytest.approx(expected, abs=1e-6)


def test_idf_of_many_requests_is_counted_in_pieces() -> None:
    counts = np.zeros((3000, 1, 2), dtype=np.int32)
    counts[:2500, 0, 0] = 7
    assert idf_weights(counts)[0] == pytest.approx([math.log(3001 / 2501), math.log(3001)])


@given(counts_of, weights_of, masks, st.booleans())
@settings(deadline=None)
def test_signatures_are_unit_or_zero_and_follow_the_formula(
    counts: Any, weights: Any, layers: Any, binary: bool
) -> None:
    space = SignatureSpace(weights, layers, binary=binary)
    signatures = space.signatures(counts)
    assert signatures.dtype == np.float32
    assert signatures.shape == (len(counts), space.dimensions)
    assert np.isfinite(signatures).all()
    for request, signature in zip(counts, signatures, strict=True):
        values = (request > 0).astype(float) if binary else request.astype(float)
        raw = np.concatenate([values[layer] * weights[layer] for layer in sorted(layers)])
        length = np.linalg.norm(raw)
        assert np.linalg.norm(signature) == pytest.approx(1.0 if length > 0 else 0.0, abs=1e-5)
        assert signature == pytest.approx(raw / length if length > 0 else raw, abs=1e-5)
        assert (space.signature(request) == signature).all()


@given(counts_of, weights_of, masks)
@settings(deadline=None)
def test_the_sum_of_parts_has_the_signature_of_the_whole(
    blocks: Any, weights: Any, layers: Any
) -> None:
    """A prefix hit leaves a request in blocks; weighed parts add up before the normalisation."""
    space = SignatureSpace(weights, layers)
    whole = space.signature(blocks.sum(axis=0))
    raw = sum(
        np.concatenate([space.weigh(block[None, layer], layer)[0] for layer in space.kept])
        for block in blocks
    )
    length = np.linalg.norm(raw)
    assert whole == pytest.approx(raw / length if length > 0 else raw, abs=1e-5)


def test_the_order_of_selection_does_not_change_the_signature() -> None:
    counts = np.arange(2 * LAYERS * EXPERTS).reshape(2, LAYERS, EXPERTS)
    weights = np.ones((LAYERS, EXPERTS))
    one, two = SignatureSpace(weights, (3, 1)), SignatureSpace(weights, (1, 3))  # type: ignore[arg-type]
    assert one.layers == (3, 1)
    assert (one.signatures(counts) == two.signatures(counts)).all()


def test_more_requests_than_one_piece() -> None:
    counts = np.random.default_rng(0).integers(0, 9, size=(1100, 2, 3))
    space = SignatureSpace(np.ones((2, 3)), (0, 1))  # type: ignore[arg-type]
    expected = counts.reshape(1100, -1) / np.linalg.norm(counts.reshape(1100, -1), axis=1)[:, None]
    assert space.signatures(counts) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("weights", "layers", "words"),
    [
        (np.ones(3), (0,), r"\[layers, experts\]"),
        (np.full((2, 3), np.nan), (0,), "finite"),
        (-np.ones((2, 3)), (0,), ">= 0"),
        (np.ones((2, 3)), (), "at least one"),
        (np.ones((2, 3)), (1, 1), "once"),
        (np.ones((2, 3)), (2,), "0..1"),
    ],
)
def test_a_space_that_cannot_be(weights: Any, layers: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SignatureSpace(weights, layers)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (np.ones((2, 3)), r"counts\[None\]"),
        (np.ones((0, 2, 3)), "no requests"),
        (np.ones((1, 0, 3)), "no layers"),
        (np.ones((1, 2, 4)), "2 layers x 4 experts"),
        (np.full((1, 2, 3), np.nan), "NaN"),
        (np.full((1, 2, 3), np.inf), "infinite"),
        (np.full((1, 2, 3), -1), "negative"),
        (np.full((1, 2, 3), "a"), "dtype"),
    ],
)
def test_counts_that_are_refused(counts: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SignatureSpace(np.ones((2, 3)), (0, 1)).signatures(counts)  # type: ignore[arg-type]


def good() -> dict[str, np.ndarray]:
    ones = np.ones((4, 2, 3), dtype=np.int64)
    return {"prefill": ones * 5, "decode": ones.copy(), "tokens": np.full(4, 2)}


def broken(**changes: object) -> dict[str, np.ndarray]:
    parts = good()
    for name, change in changes.items():
        parts[name] = change(parts[name])  # type: ignore[operator]
    return parts


def put(where: object, value: float, dtype: type | None = None) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(dtype) if dtype else array.copy()
        array[where] = value  # type: ignore[call-overload]
        return array

    return change


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (broken(prefill=lambda a: a[:0]), "prefill counts hold no requests"),
        (broken(decode=lambda a: a[:3]), r"shape \(3, 2, 3\).*same requests"),
        (broken(tokens=lambda a: a[:3]), "one number of decode tokens"),
        (broken(prefill=put((2, 0, 1), np.nan, float)), "request 2 are NaN"),
        (broken(decode=put((1, 0, 1), -1)), "request 1 are negative"),
        (broken(tokens=put(3, 0)), "request 3 has no decode tokens"),
        (broken(tokens=put(3, np.nan, float)), "finite"),
        (broken(decode=put((0, 1, 1), 9)), "request 0 has an expert counted more often"),
        (broken(prefill=put((slice(None), 1), 0)), "layer 1 never fires an expert in the prefill"),
        (broken(decode=put((slice(None), 0), 0)), "layer 0 never fires an expert in the decode"),
    ],
)
def test_calibration_that_is_refused(parts: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Calibration(**parts)


def test_a_long_list_of_bad_requests_is_shortened() -> None:
    parts = good()
    many = {name: np.repeat(array, 5, axis=0) for name, array in parts.items()}
    many["tokens"][:] = 0
    with pytest.raises(ValueError, match=r"6, 7, \.\.\. \(20 in all\)"):
        Calibration(**many)


def test_probabilities_are_shares_of_the_decode_tokens() -> None:
    data = Calibration(**good())
    assert data.probabilities(1) == pytest.approx(np.full((4, 3), 0.5))
    assert data.subset(np.array([1, 2])).requests == 2


@given(arrays.arrays(np.int32, (7, 3), elements=st.integers(-2, 2)), st.permutations(range(7)))
def test_canonical_order_forgets_the_order(rows: Any, shuffled: Any) -> None:
    again = rows[list(shuffled)]
    assert (rows[canonical_order(rows)] == again[canonical_order(again)]).all()
    first, second = rows[:, :1], rows[:, 1:]
    order = canonical_order(first, second)
    other = canonical_order(first[list(shuffled)], second[list(shuffled)])
    assert (rows[order] == again[other]).all()
