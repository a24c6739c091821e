"""CPU shims: a constant that DP attention asks for, and decode attention in one gather a layer.

`TorchNativeAttnBackend` of SGLang 0.5.21 lacks `get_cpu_graph_seq_len_fill_value` (called in
`srt/model_executor/forward_batch_info.py:1801` when idle ranks are padded). And its
`_run_sdpa_forward_decode` looks up each request's slots, keys and values anew in every layer: at a
batch of ten that takes 2.3 times as long as gathering once for all. On a GPU attention is one
kernel; on the CPU it would hide what the experts of a batch cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch, resolve
from patches.layers import Original
from patches.sglang_types import ForwardBatch

if TYPE_CHECKING:
    from torch import Tensor

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
METHOD = "get_cpu_graph_seq_len_fill_value"
PLAN = "_toolkit_decode_plan"


@dataclass(frozen=True)
class AttentionPlan:
    """A decode batch: the KV slots of all requests, one after the other, and where each begins."""

    slots: Tensor
    bounds: list[int]


def plan(req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor) -> AttentionPlan:
    """Of a batch whose request i has `seq_lens[i]` tokens."""
    import torch

    lengths = seq_lens.tolist()
    rows = req_pool_indices.tolist()
    slots = [req_to_token[row, :length] for row, length in zip(rows, lengths, strict=True)]
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return AttentionPlan(torch.cat(slots).long(), bounds)


def attend(
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionPlan,
    scaling: float | None,
) -> Tensor:
    """`query` [B, heads, D] against slots of `k_cache`, `v_cache` [slots, KV heads, D]."""
    from torch.nn.functional import scaled_dot_product_attention

    keys = k_cache.index_select(0, batch.slots).transpose(0, 1)
    values = v_cache.index_select(0, batch.slots).transpose(0, 1)
    # Heads that share keys are rows of one product.
    grouped = query.reshape(len(query), keys.shape[0], -1, query.shape[-1])
    result = output.view(len(query), keys.shape[0], -1, output.shape[-1])
    for number, (begin, end) in enumerate(pairwise(batch.bounds)):
        result[number] = scaled_dot_product_attention(
            grouped[number : number + 1],
            keys[None, :, begin:end],
            values[None, :, begin:end],
            scale=scaling,
        )[0]
    return output


def is_plain(query: Tensor, keys: Tensor, encoder_lens: Tensor | None, **options: object) -> bool:
    """Whether it is attention of a decoder to all that came before, without a window."""
    within = encoder_lens is None and not options.get("is_cross_attn")
    windowed = options.get("sliding_window_size") is not None
    return within and not windowed and query.dtype == keys.dtype


def _begin(original: Original[object], self: object, forward_batch: ForwardBatch) -> object:
    setattr(self, PLAN, None)
    return original(self, forward_batch)


def _decode(
    original: Original[object],
    self: object,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    encoder_lens: Tensor | None = None,
    scaling: float | None = None,
    **options: object,
) -> object:
    if not is_plain(query, k_cache, encoder_lens, **options):
        args = (query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
        return original(self, *args, encoder_lens, scaling=scaling, **options)
    batch = getattr(self, PLAN, None)
    if batch is None:
        batch = plan(req_to_token, req_pool_indices, seq_lens)
        setattr(self, PLAN, batch)
    return attend(query, output, k_cache, v_cache, batch, scaling)


def _add_fill_value() -> None:
    def fill_value(_self: object) -> int:
        return 1

    backend = resolve(BACKEND)
    if METHOD not in vars(backend):
        setattr(backend, METHOD, fill_value)


PADDING_PATCH = Patch(
    name="cpu_padding",
    why="padding idle DP ranks needs a length that the torch backend does not name",
    processes=EITHER,
    cpu_only=True,
    requires=(BACKEND,),
    attach=_add_fill_value,
)
PATCH = Patch(
    name="cpu_attention",
    why="decode of the torch backend gathers keys request by request, in every layer",
    gain="decode steps of several requests on a CPU",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(f"{BACKEND}.init_forward_metadata", _begin, ("self", "forward_batch")),
        Hook(
            f"{BACKEND}._run_sdpa_forward_decode",
            _decode,
            (
                "self",
                "query",
                "output",
                "k_cache",
                "v_cache",
                "req_to_token",
                "req_pool_indices",
                "seq_lens",
                "encoder_lens",
                "scaling",
            ),
        ),
    ),
    requires=(BACKEND,),
)
