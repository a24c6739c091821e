"""Attention with sinks and windows on the CPU, against sums that are written out."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches.cpu.attention_sinks import attend
from tests.kernels import examples

torch = pytest.importorskip("torch")


def written_out(
    query: Any, keys: Any, values: Any, first: int, window: int | None, sinks: Any
) -> Any:
    shared = query.shape[1] // keys.shape[1]
    output = torch.zeros(len(query), query.shape[1], values.shape[2])
    for number, head in ((n, h) for n in range(len(query)) for h in range(query.shape[1])):
        at = first + number
        low = 0 if window is None else max(0, at - window)
        scores = {
            of: 0.3 * float(query[number, head] @ keys[of, head // shared])
            for of in range(low, at + 1)
        }
        total = sum(math.exp(score) for score in scores.values())
        total += 0.0 if sinks is None else math.exp(float(sinks[head]))
        for of, score in scores.items():
            output[number, head] += math.exp(score) / total * values[of, head // shared]
    return output


@settings(max_examples=examples(25))
@given(
    st.integers(0, 6),
    st.integers(1, 5),
    st.sampled_from([None, 0, 2, 20]),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_query_sees_its_window_and_the_sink(
    first: int, count: int, window: int | None, sink: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn((count, 4, 8), generator=generator)
    keys = torch.randn((first + count, 2, 8), generator=generator)
    values = torch.randn((first + count, 2, 6), generator=generator)
    sinks = torch.randn(4, generator=generator) if sink else None
    found = attend(query, keys, values, first, window, 0.3, sinks)
    expected = written_out(query, keys, values, first, window, sinks)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
