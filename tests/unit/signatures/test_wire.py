"""Counts on the wire: exact up to 255, close beyond, and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolkit.contract.events import Signature
from toolkit.signatures.wire import pack, unpack

shapes = st.tuples(st.integers(1, 6), st.integers(1, 40))
integers = st.sampled_from([np.int32, np.int64, np.uint16])


def counts_up_to(largest: int) -> st.SearchStrategy[np.ndarray]:
    elements = st.integers(0, largest)
    return integers.flatmap(lambda dtype: arrays.arrays(dtype, shapes, elements=elements))


def over_json(wire: Signature) -> tuple[np.ndarray, Signature]:
    event = {
        "counts": b64encode(wire.counts).decode(),
        "scale": wire.scale,
        "tokens": wire.tokens,
        "complete": wire.complete,
    }
    return unpack(json.loads(json.dumps(event)))


@given(counts_up_to(255), st.integers(1, 10**6), st.booleans())
def test_counts_up_to_255_arrive_exactly(counts, tokens, complete):
    sent = pack(counts, tokens, complete)
    found, wire = over_json(sent)
    assert wire == sent
    assert (wire.scale, wire.tokens, wire.complete) == (1.0, tokens, complete)
    assert len(wire.counts) == counts.size
    assert found.dtype == np.float32
    assert (found == counts.ravel()).all()


@given(counts_up_to(65_535), st.integers(256, 65_535))
def test_greater_counts_move_by_at_most_a_500th_of_the_greatest(counts, largest):
    counts.flat[0] = largest
    found, wire = over_json(pack(counts, 70_000, True))
    greatest = int(counts.max())
    assert wire.scale == pytest.approx(greatest / 255)
    assert np.abs(found - counts.ravel()).max() <= 0.002 * greatest
    assert found.max() == pytest.approx(greatest)
    assert (found[counts.ravel() == 0] == 0).all()


def test_the_first_count_beyond_a_byte():
    for largest, scale in ((255, 1.0), (256, 256 / 255)):
        found, wire = over_json(pack(np.array([0, 1, largest]), 300, True))
        assert wire.scale == scale
        assert found == pytest.approx([0, 1, largest], abs=0.005)


def test_nothing_counted():
    found, wire = over_json(pack(np.zeros(0, dtype=np.int64), 5, False))
    assert found.shape == (0,)
    assert not wire.complete


def good() -> dict[str, object]:
    return {"counts": "AQI=", "scale": 1.0, "tokens": 9, "complete": True}


@pytest.mark.parametrize(
    "change",
    [
        {"counts": None},
        {"counts": "no base64!"},
        {"scale": "wide"},
        {"scale": None},
        {"tokens": []},
        {"tokens": "many"},
    ],
)
def test_what_is_no_signature(change):
    with pytest.raises(ValueError, match="not a signature"):
        unpack(good() | change)


@pytest.mark.parametrize("missing", sorted(good()))
def test_a_missing_key(missing):
    event = {key: value for key, value in good().items() if key != missing}
    with pytest.raises(ValueError, match=missing):
        unpack(event)


@pytest.mark.parametrize("value", ["true", 1, None])
def test_only_true_is_complete(value):
    with pytest.raises(ValueError, match="complete"):
        unpack(good() | {"complete": value})
