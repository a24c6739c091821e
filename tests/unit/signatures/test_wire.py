"""Counts on the wire: exact, however long the prompt, and what is refused."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolkit.contract.events import PrefillDone, Signature, decode, encode
from toolkit.signatures.wire import pack, unpack

shapes = st.tuples(st.integers(1, 6), st.integers(1, 40))
integers = st.sampled_from([np.int32, np.int64, np.uint16, np.uint32])
EXACT = 2**24


def counts_up_to(largest: int) -> st.SearchStrategy[np.ndarray]:
    def of(dtype: type[np.integer[Any]]) -> st.SearchStrategy[np.ndarray]:
        elements = st.integers(0, min(largest, int(np.iinfo(dtype).max)))
        return arrays.arrays(dtype, shapes, elements=elements)

    return integers.flatmap(of)  # type: ignore[arg-type]


def over_json(wire: Signature) -> tuple[np.ndarray, Signature]:
    """As it goes: in the worker's event, which the router decodes before it looks at it."""
    event = decode(encode(PrefillDone("r", signature=wire)))
    assert isinstance(event, PrefillDone)
    return unpack(event.signature)


@given(
    st.sampled_from([1, 255, 256, 65_535, 65_536, EXACT]).flatmap(counts_up_to),
    st.integers(1, 10**6),
    st.booleans(),
)
def test_counts_arrive_exactly(counts: Any, tokens: int, complete: bool) -> None:
    sent = pack(counts, tokens, complete)
    found, wire = over_json(sent)
    assert wire == sent
    assert (wire.scale, wire.tokens, wire.complete) == (1.0, tokens, complete)
    assert found.dtype == np.float32
    assert (found == counts.ravel()).all()


@given(counts_up_to(2**31 - 1))
def test_no_expert_that_a_token_used_is_lost(counts: Any) -> None:
    """IDF weighs the rare ones most."""
    found, _ = over_json(pack(counts, 2**31 - 1, True))
    assert ((found > 0) == (counts.ravel() > 0)).all()


@pytest.mark.parametrize(
    ("largest", "width"),
    [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4)],
)
def test_a_count_takes_as_few_bytes_as_the_greatest_one_needs(largest: Any, width: int) -> None:
    sent = pack(np.array([0, 1, largest]), 300, True)
    assert (sent.width, len(sent.counts)) == (width, 3 * width)
    assert over_json(sent)[0].tolist() == [0, 1, np.float32(largest)]


@pytest.mark.parametrize("counts", [[0, 2**32], [-1, 5]])
def test_what_fits_into_no_width_is_refused(counts: Any) -> None:
    with pytest.raises(ValueError, match="between 0 and"):
        pack(np.array(counts), 9, True)


def test_a_worker_from_before_the_width_is_still_read() -> None:
    found, wire = unpack({"counts": "AQL/", "scale": 2.0, "tokens": 600, "complete": True})
    assert found.tolist() == [2, 4, 510]
    assert wire.width == 1


def test_short_prompts_look_as_they_did_to_a_router_from_before_the_width() -> None:
    event = msgspec.to_builtins(pack(np.array([0, 255]), 9, True))
    assert event == {"counts": "AP8=", "scale": 1.0, "tokens": 9, "complete": True}


def test_nothing_counted() -> None:
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
        {"width": 0},
        {"width": 3},
        {"width": "2"},
        {"counts": "AQID", "width": 2},
    ],
)
def test_what_is_no_signature(change: Any) -> None:
    with pytest.raises(ValueError, match="not a signature"):
        unpack(good() | change)


@pytest.mark.parametrize("missing", sorted(good()))
def test_a_missing_key(missing: Any) -> None:
    event = {key: value for key, value in good().items() if key != missing}
    with pytest.raises(ValueError, match=missing):
        unpack(event)


@pytest.mark.parametrize("value", ["true", 1, None])
def test_only_true_is_complete(value: Any) -> None:
    with pytest.raises(ValueError, match="complete"):
        unpack(good() | {"complete": value})
