"""Where a request's KV is: its row of `req_to_token`, and the slots that stand there."""

from typing import Any

from patches.sglang_types import Req


def kv_row(req: Req) -> int | None:
    """None for a request without KV. In SGLang 0.5.17 the request has it itself."""
    older = req.kv is None or not hasattr(req.kv, "req_pool_idx")
    return getattr(req, "req_pool_idx", None) if older else req.kv.req_pool_idx


def shorten(req: Req, tokens: int) -> None:
    """It has KV of so many tokens, and places for no more."""
    req.kv.kv_allocated_len = tokens
    holder: Any = req.kv if hasattr(req.kv, "kv_committed_len") else req  # as in SGLang 0.5.17
    holder.kv_committed_len = tokens


def physical(allocator: Any, slots: Any) -> Any:
    """Slots of the pool, for a transfer, of those in `req_to_token`; int tensors [tokens]. They are
    the same in SGLang 0.5.17, and later unless memory is unified."""
    translate = getattr(allocator, "translate_kv_indices_for_transfer", None)
    return slots if translate is None else translate(slots)
