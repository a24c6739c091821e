"""CPU shim: attention with sinks, and with KV of sliding-window layers in a pool of their own
(GPT-OSS).

`forward_extend` of `srt/layers/attention/torch_native_backend.py` (SGLang 0.5.21) does
not take the `sinks` that `srt/models/gpt_oss.py:501` gives it. And it looks for the keys of every
layer at the slots of the full pool. A windowed layer's keys are in the other pool at slots of their
own: it writes them there, and reads what other tokens left. So SGLang refuses this backend for
GPT-OSS, for good reason; here is what is missing.
"""

from typing import Any

from patches.base import EITHER, Hook, Patch

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
ARGUMENTS = ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache")


def attend(
    query: Any,
    keys: Any,
    values: Any,
    first: int,
    window: int | None,
    scaling: float,
    sinks: Any = None,
) -> Any:
    """`query` [Q, heads, D] of positions from `first` on, against `keys`, `values` [N, KV heads,
    D] of positions 0 to N - 1. A query sees `window` positions before its own. `sinks` [heads]: a
    score for nothing, which takes its share of the weights."""
    import torch

    count, total = len(query), len(keys)
    shared = query.shape[1] // keys.shape[1]
    keys = keys.to(query.dtype).repeat_interleave(shared, dim=1)
    values = values.to(query.dtype).repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,nhd->hqn", query, keys) * scaling
    at = torch.arange(first, first + count).unsqueeze(1)
    of = torch.arange(total)
    seen = of <= at
    if window is not None:
        seen &= of >= at - window
    scores.masked_fill_(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, count, 1)
        scores = torch.cat([scores, column], dim=2)
    weights = scores.softmax(dim=2)[:, :, :total]
    return torch.einsum("hqn,nhd->qhd", weights, values)


def _own_pool(backend: Any, layer: Any) -> bool:
    """Whether this layer's keys are in the sliding-window pool."""
    if not backend.use_sliding_window_kv_pool:
        return False
    return bool(backend.token_to_kv_pool.layers_mapping[layer.layer_id][1])


def _extend(
    original: Any,
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    sinks: Any = None,
    **rest: Any,
) -> Any:
    if sinks is None and not _own_pool(self, layer):
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **rest)
    starts = forward_batch.extend_prefix_lens.tolist()
    return _run(self, q, k, v, layer, forward_batch, save_kv_cache, sinks, starts)


def _decode(
    original: Any,
    self: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    sinks: Any = None,
    **rest: Any,
) -> Any:
    if sinks is None and not _own_pool(self, layer):
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **rest)
    starts = (forward_batch.seq_lens - 1).tolist()
    return _run(self, q, k, v, layer, forward_batch, save_kv_cache, sinks, starts)


def _run(
    backend: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    save: bool,
    sinks: Any,
    starts: list[int],
) -> Any:
    """Tokens from position `starts[i]` on of request i."""
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool = backend.token_to_kv_pool
    if save and k is not None:
        place = KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc)
        pool.set_kv_buffer(layer, place, k, v)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
    output = query.new_zeros((len(query), layer.tp_q_head_num, layer.v_head_dim))
    window = layer.sliding_window_size
    window = None if window is None or window < 0 else window
    rows, lengths = forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist()
    done = 0
    for row, length, first in zip(rows, lengths, starts, strict=True):
        slots = backend.req_to_token_pool.req_to_token[row, :length]
        if _own_pool(backend, layer):
            slots = pool.translate_loc_from_full_to_swa(slots)
        end = done + length - first
        output[done:end] = attend(
            query[done:end], keys[slots], values[slots], first, window, layer.scaling, sinks
        )
        done = end
    return output.view(len(query), -1)


PATCH = Patch(
    name="cpu_attention_sinks",
    why="the torch backend has no attention sinks and reads the wrong pool of windowed layers",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(f"{BACKEND}.forward_extend", _extend, ARGUMENTS),
        Hook(f"{BACKEND}.forward_decode", _decode, ARGUMENTS),
    ),
    requires=(
        "sglang.srt.mem_cache.memory_pool.KVWriteLoc",
        "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool.translate_loc_from_full_to_swa",
    ),
)
