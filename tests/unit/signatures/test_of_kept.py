"""The router's short way to a signature gives what the long way gives."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolkit.signatures import SignatureSpace
from toolkit.signatures.wire import pack, unpack

LAYERS, EXPERTS = 5, 7
counts_of = arrays.arrays(np.int64, (LAYERS, EXPERTS), elements=st.integers(0, 900) | st.just(0))
weights_of = arrays.arrays(
    np.float32, (LAYERS, EXPERTS), elements=st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0])
)
masks = st.lists(st.integers(0, LAYERS - 1), min_size=1, unique=True).map(tuple)
dtypes = st.sampled_from([np.uint16, np.float32])


@given(counts_of, weights_of, masks, st.booleans(), dtypes)
@settings(deadline=None)
def test_equals_the_signature_of_all_layers(
    counts: Any, weights: Any, layers: Any, binary: bool, dtype: Any
) -> None:
    space = SignatureSpace(weights, layers, binary=binary)
    kept = counts[sorted(layers)].reshape(-1).astype(dtype)
    found = space.of_kept(kept)
    assert found.dtype == np.float32
    assert found == pytest.approx(space.signature(counts), abs=1e-6)
    assert np.linalg.norm(found) == pytest.approx(1.0 if found.any() else 0.0, abs=1e-5)


@given(counts_of, weights_of, masks)
@settings(deadline=None)
def test_over_the_wire_nothing_moves(counts: Any, weights: Any, layers: Any) -> None:
    space = SignatureSpace(weights, layers)
    kept = counts[sorted(layers)]
    found, _ = unpack(msgspec.to_builtins(pack(kept, 1000, True)))
    assert (space.of_kept(found) == space.of_kept(kept.reshape(-1).astype(np.float32))).all()


def test_a_rare_expert_of_a_long_prompt_points_where_idf_says() -> None:
    """IDF may weigh what one token used as much as what thousands used; a scaled byte lost it."""
    space = SignatureSpace(np.array([[0.001, 8.0]]), (0,))
    found, _ = unpack(msgspec.to_builtins(pack(np.array([8_000, 1]), 8_000, True)))
    assert space.of_kept(found) == pytest.approx([2**-0.5, 2**-0.5])


def test_it_does_not_change_the_counts() -> None:
    counts = np.arange(6, dtype=np.float32)
    space = SignatureSpace(np.full((2, 3), 2.0), (0, 1))
    assert not np.shares_memory(space.of_kept(counts), counts)
    assert (counts == np.arange(6)).all()


@pytest.mark.parametrize("shape", [(5,), (7,), (2, 3), (1, 6), ()])
def test_another_length_is_refused(shape: Any) -> None:
    space = SignatureSpace(np.ones((4, 3)), (0, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="this space has 6"):
        space.of_kept(np.ones(shape))
