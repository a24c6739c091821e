"""Plain-torch stand-in for the CUDA-only `sgl_kernel`, on the path of CPU workers alone.

SGLang 0.5.21 imports some `*_cpu` names when its modules load on CPU
(kernels/ops/kvcache/cache_move.py:10, srt/mem_cache/allocation.py:47), though the package on
PyPI holds CUDA builds only. Those of speculative decoding are in `sgl_kernel.speculation`; any
other raises when called.
`patches.worker` puts this folder in front of `sys.path`, and only when the device is cpu.
"""

import ctypes
from typing import Any

import torch

from sgl_kernel.speculation import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]
__version__ = "0.0.0+toolkit.cpu"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new KV slots into its row of `req_to_token` (in place).

    Shapes: `req_pool_indices`, `start_offset`, `end_offset` [batch]; `req_to_token`
    [requests, pool_len]; `out_cache_loc` [sum of (end - start)], in batch order.
    """
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        count = end - start
        req_to_token[row, start:end] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy KV rows `src_loc` to `tgt_loc` in every layer's K and V buffer.

    `data_ptrs` [buffers] are base addresses, `strides` [buffers] the bytes of one row. Every row
    is read before the first is written, as source and target rows may overlap.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(
            f"sgl_kernel.{name} is a CUDA kernel and this worker runs on CPU; "
            "turn off the feature that calls it, or run the worker with device: cuda"
        )

    missing.__name__ = name
    return missing
