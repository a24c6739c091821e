"""CPU shim: `--enable-deterministic-inference` means on a CPU what it means on a GPU.

With the flag SGLang samples each token by the request's seed and the token's position alone, and
runs kernels in which a row's sum does not depend on the rows beside it. On a CPU it refuses the
flag: it lists no attention backend of the CPU (`srt/arg_groups/overrides.py`), its kernels are of
Triton (`srt/batch_invariant_ops`), and the hash behind a seed is in a library that is not built
for this machine. Here a CPU worker has all three, in the simplest way: every matrix product is
computed row by row, and attention token by token, in prompts as in answers. So a token's
KV and log probabilities are the same to the bit in whatever batch it is computed, and whether it
was a prompt's or an answer's; that holds for a request that was computed again elsewhere, too.

It is slow, and meant for trials and tests. Models with sliding windows or encoders keep SGLang's
own attention, of which nothing is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch
from patches.cpu.attention import is_plain
from patches.flags import DETERMINISTIC, allow_deterministic
from patches.layers import Original
from patches.sglang_types import ModelRunner

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
_library: torch.library.Library | None = None
"""The kernels are registered as long as this object lives; None: the flag is not given."""


def mm(left: Tensor, right: Tensor) -> Tensor:
    """[rows, n] of [rows, k] x [k, n], each row by itself."""
    product = left.new_empty((left.shape[0], right.shape[1]))
    turned = right.t()
    for number, row in enumerate(left):
        product[number] = turned.mv(row.clone())  # a copy, as a sum's order can follow the address
    return product


def addmm(
    added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """`beta * added + alpha * (left x right)`."""
    return beta * added + alpha * mm(left, right)


def bmm(left: Tensor, right: Tensor) -> Tensor:
    """A product for each of a batch."""
    import torch

    return torch.stack([mm(one, other) for one, other in zip(left, right, strict=True)])


def compute_by_rows() -> None:
    """From now on PyTorch's matrix products on the CPU are those above."""
    global _library
    if _library is None:
        import torch

        _library = torch.library.Library("aten", "IMPL")
        for name, kernel in (("mm", mm), ("addmm", addmm), ("bmm", bmm)):
            _library.impl(name, kernel, "CPU")


def attend(
    query: Tensor, output: Tensor, keys: Tensor, values: Tensor, first: int, scaling: float | None
) -> None:
    """Fill `output` [tokens, heads, D] for `query` at positions from `first` on; `keys` and
    `values` are those of all positions, [positions, KV heads, D]."""
    from torch.nn.functional import scaled_dot_product_attention

    keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    shared = keys.shape[1]
    for number, row in enumerate(query):
        seen = first + number + 1
        # Heads that share keys are rows of one product.
        one = row.reshape(1, shared, -1, row.shape[-1])
        found = scaled_dot_product_attention(
            one, keys[:, :, :seen], values[:, :, :seen], scale=scaling
        )
        output[number] = found.reshape(row.shape[0], -1)


def _row_by_row(original: Original[None], runner: ModelRunner) -> None:
    if runner.server_args.enable_deterministic_inference:
        compute_by_rows()
    else:
        original(runner)


def _ours(query: Tensor, keys: Tensor, encoder_lens: Tensor | None, **options: object) -> bool:
    return _library is not None and is_plain(query, keys, encoder_lens, **options)


def _extend(
    original: Original[object],
    self: object,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    encoder_lens: Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    **options: object,
) -> object:
    if not causal or not _ours(query, k_cache, encoder_lens, **options):
        pools = (k_cache, v_cache, req_to_token, req_pool_indices)
        lengths = (seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens)
        named = {"scaling": scaling, "enable_gqa": enable_gqa, "causal": causal, **options}
        return original(self, query, output, *pools, *lengths, **named)
    begin = 0
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    for row, length, new in rows:
        slots = req_to_token[row, :length].long()
        keys, values = k_cache.index_select(0, slots), v_cache.index_select(0, slots)
        part = slice(begin, begin + new)
        attend(query[part], output[part], keys, values, length - new, scaling)
        begin += new
    return output


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
    if not _ours(query, k_cache, encoder_lens, **options):
        args = (query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
        return original(self, *args, encoder_lens, scaling=scaling, **options)
    for number, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        slots = req_to_token[row, :length].long()
        keys, values = k_cache.index_select(0, slots), v_cache.index_select(0, slots)
        part = slice(number, number + 1)
        attend(query[part], output[part], keys, values, length - 1, scaling)
    return output


def murmur(seeds: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """MurmurHash3 (32 bits) of seed (64 bits), position and column (32 bits each), little-endian:
    int64 [rows, columns]."""
    import numpy as np
    import torch

    def rotated(words: Tensor, by: int) -> Tensor:
        return (words << np.uint32(by)) | (words >> np.uint32(32 - by))

    def mixed(state: Tensor, block: Tensor) -> Tensor:
        block = rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        return rotated(state ^ block, 13) * np.uint32(5) + np.uint32(0xE6546B64)

    seed = seeds.view(torch.int64).numpy().view(np.uint64)[:, None]
    state = mixed(np.uint32(0), seed.astype(np.uint32))
    state = mixed(state, (seed >> np.uint64(32)).astype(np.uint32))
    state = mixed(state, positions.numpy().astype(np.uint32)[:, None])
    state = mixed(state, columns.numpy().astype(np.uint32)[None]) ^ np.uint32(16)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return torch.from_numpy((state ^ (state >> np.uint32(16))).astype(np.int64))


def _hash(
    original: Original[object], seed: Tensor, positions: Tensor, col_indices: Tensor
) -> object:
    return murmur(seed, positions, col_indices)


PATCH = Patch(
    name="cpu_deterministic",
    why="a CPU worker refuses the flag without which a seed means nothing",
    after={"cpu_attention": "with the flag a token's attention is computed here"},
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
            _row_by_row,
            ("self",),
        ),
        Hook(
            f"{BACKEND}._run_sdpa_forward_extend",
            _extend,
            (
                *("self", "query", "output", "k_cache", "v_cache", "req_to_token"),
                *("req_pool_indices", "seq_lens", "extend_prefix_lens", "extend_seq_lens"),
                *("encoder_lens", "scaling", "enable_gqa", "causal"),
            ),
        ),
        Hook(
            f"{BACKEND}._run_sdpa_forward_decode",
            _decode,
            (
                *("self", "query", "output", "k_cache", "v_cache", "req_to_token"),
                *("req_pool_indices", "seq_lens", "encoder_lens", "scaling"),
            ),
        ),
        Hook(
            "sglang.kernels.ops.sampling.murmur_hash.murmur_hash32",
            _hash,
            ("seed", "positions", "col_indices"),
        ),
    ),
    requires=DETERMINISTIC,
    attach=allow_deterministic,
)
