"""The CPU's decode attention: that of one request at a time, wherever its slots lie."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches.cpu import attention
from tests.kernels import examples

torch = pytest.importorskip("torch")
SLOTS, D = 64, 8


def case(lengths: list[int], heads: int, kv_heads: int, seed: int) -> SimpleNamespace:
    """A pool, and requests that took their slots in random order."""
    generator = torch.Generator().manual_seed(seed)
    req_to_token = torch.zeros((8, SLOTS), dtype=torch.int32)
    rows = torch.randperm(8, generator=generator)[: len(lengths)]
    free = torch.randperm(SLOTS, generator=generator).to(torch.int32)
    for row, length in zip(rows.tolist(), lengths, strict=True):
        req_to_token[row, :length], free = free[:length], free[length:]
    return SimpleNamespace(
        query=torch.randn((len(lengths), heads, D), generator=generator),
        keys=torch.randn((SLOTS, kv_heads, D), generator=generator),
        values=torch.randn((SLOTS, kv_heads, D), generator=generator),
        req_to_token=req_to_token,
        rows=rows,
        lengths=torch.tensor(lengths),
    )


def one_by_one(c: SimpleNamespace) -> Any:
    """Softmax of the scaled products, written out."""
    shared = c.query.shape[1] // c.keys.shape[1]
    outputs = []
    for query, row, length in zip(c.query, c.rows, c.lengths, strict=True):
        slots = c.req_to_token[row, :length].long()
        keys = c.keys[slots].repeat_interleave(shared, dim=1)
        values = c.values[slots].repeat_interleave(shared, dim=1)
        weights = torch.einsum("hd,nhd->hn", query, keys).mul(0.3).softmax(dim=1)
        outputs.append(torch.einsum("hn,nhd->hd", weights, values))
    return torch.stack(outputs)


def decode(backend: Any, c: SimpleNamespace, original: Any = None, **options: Any) -> Any:
    cache = (c.query, torch.empty_like(c.query), c.keys, c.values)
    batch = (c.req_to_token, c.rows, c.lengths)
    return attention._decode(original, backend, *cache, *batch, None, scaling=0.3, **options)


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.integers(0, 99),
)
def test_every_request_attends_to_its_own_slots(lengths: list[int], heads: Any, seed: int) -> None:
    c = case(lengths, *heads, seed)  # type: ignore[call-arg]
    torch.testing.assert_close(decode(SimpleNamespace(), c), one_by_one(c))


def test_the_plan_serves_every_layer_of_a_forward_and_no_other() -> None:
    backend = SimpleNamespace()
    first, second = case([3, 5], 4, 2, 0), case([4, 5], 4, 2, 1)
    attention._begin(lambda *_: None, backend, SimpleNamespace())
    torch.testing.assert_close(decode(backend, first), one_by_one(first))
    kept = getattr(backend, attention.PLAN)
    first.keys = first.keys.flip(0)  # the next layer's
    torch.testing.assert_close(decode(backend, first), one_by_one(first))
    assert getattr(backend, attention.PLAN) is kept
    attention._begin(lambda *_: None, backend, SimpleNamespace())
    torch.testing.assert_close(decode(backend, second), one_by_one(second))


@pytest.mark.parametrize("options", [{"sliding_window_size": 4}, {"is_cross_attn": True}])
def test_what_it_is_not_made_for_goes_to_sglang(options: Any) -> None:
    seen: list[dict[str, Any]] = []
    decode(SimpleNamespace(), case([3], 4, 2, 0), lambda *_, **given: seen.append(given), **options)
    assert seen == [{"scaling": 0.3} | options]
