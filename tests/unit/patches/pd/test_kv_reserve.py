"""What a request needs to be let in, on a queue that has SGLang's reserve."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from patches.pd.kv_reserve import _to_come_back, _to_get_in

POOL, RESERVE = 1000, 512


def queue(sparse: bool = False) -> Any:
    return SimpleNamespace(
        max_total_num_tokens=POOL, scheduler=SimpleNamespace(enable_hisparse=sparse)
    )


def to_get_in(of: Any, tokens: int, prefix: int) -> int:
    def original(_queue: Any, _req: Any, allocated: int, *_rest: int) -> int:
        return allocated + RESERVE

    return _to_get_in(original, of, None, tokens - prefix, prefix, 0)  # type: ignore[arg-type]


@given(tokens=st.integers(1, POOL), cached=st.floats(0, 1))
def test_whom_the_pool_can_hold_gets_in_when_it_is_empty(tokens: int, cached: float) -> None:
    prefix = int(cached * (tokens - 1))
    needed = to_get_in(queue(), tokens, prefix)
    assert tokens - prefix <= needed <= POOL - prefix
    if tokens + RESERVE <= POOL:
        assert needed == tokens - prefix + RESERVE, "as released"


def test_who_was_retracted_comes_back_to_an_empty_pool() -> None:
    assert _to_come_back(lambda *_: (900 + RESERVE, 30), queue(), None) == (POOL, 30)  # type: ignore[arg-type]
    assert _to_come_back(lambda *_: (100 + RESERVE, 30), queue(), None) == (612, 30)  # type: ignore[arg-type]


def test_sparse_attention_is_left_as_it_is() -> None:
    assert to_get_in(queue(sparse=True), 900, 0) == 900 + RESERVE
