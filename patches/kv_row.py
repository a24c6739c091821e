"""Where a request's KV is: its row of `req_to_token`, and the slots that stand there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patches.sglang_types import Req, SlotAllocator

if TYPE_CHECKING:
    from torch import Tensor


def kv_row(req: Req) -> int | None:
    """None for a request without KV. In SGLang 0.5.17 the request has it itself."""
    if req.kv is None or not hasattr(req.kv, "req_pool_idx"):
        return getattr(req, "req_pool_idx", None)
    return req.kv.req_pool_idx


def shorten(req: Req, tokens: int) -> None:
    """It has KV of so many tokens, and places for no more."""
    assert req.kv is not None
    req.kv.kv_allocated_len = tokens
    holder = req.kv if hasattr(req.kv, "kv_committed_len") else req  # as in SGLang 0.5.17
    setattr(holder, "kv_committed_len", tokens)  # noqa: B010 (one of the two lacks it)


def physical(allocator: SlotAllocator, slots: Tensor) -> Tensor:
    """Slots of the pool, for a transfer, of those in `req_to_token`; int tensors [tokens]. They are
    the same in SGLang 0.5.17, and later unless memory is unified."""
    translate = getattr(allocator, "translate_kv_indices_for_transfer", None)
    return slots if translate is None else translate(slots)
