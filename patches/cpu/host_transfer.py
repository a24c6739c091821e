"""CPU shim: hierarchical cache copies KV between its pools with plain torch.

`srt/mem_cache/pool_host/mha.py:51` and `mla.py:50` (SGLang 0.5.21) import their copying kernels
where there is CUDA, and call them by name elsewhere, too. Mended is the way of
`--hicache-io-backend direct --hicache-mem-layout layer_first`. And `pool_host/base.py:29` keeps
10 GiB of host memory free, whatever the pool's size, as if all pools were not in it already. A page
that comes from a store is pinned, which takes an accelerator (`mha.py:605`, `mla.py:1027`).
"""

from collections.abc import Sequence
from typing import Any

from patches.base import EITHER, Hook, Patch, resolve

POOLS = "sglang.srt.mem_cache.pool_host"
RESERVE = "HICACHE_HOST_MEMORY_RESERVE_BYTES"
NAME = "transfer_kv_direct"
PAGE = "get_dummy_flat_data_page"
FREE_BYTES = 2**30


def transfer(
    *,
    src_layers: Sequence[Any],
    dst_layers: Sequence[Any],
    src_indices: Any,
    dst_indices: Any,
    page_size: int,
) -> None:
    """Copy rows `src_indices` [T] of each layer to rows `dst_indices` [T]; all of them are there
    when it returns. `page_size` does not matter: indices are of tokens."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _unpinned(original: Any, pool: Any) -> Any:
    pool.pin_memory = False
    return original(pool)


def _add() -> None:
    setattr(resolve(f"{POOLS}.base"), RESERVE, FREE_BYTES)
    for module in (resolve(f"{POOLS}.mha"), resolve(f"{POOLS}.mla")):
        if not hasattr(module, NAME):
            setattr(module, NAME, transfer)


PATCH = Patch(
    name="cpu_host_transfer",
    why="hierarchical cache moves KV by CUDA kernels",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(f"{POOLS}.mha.MHATokenToKVPoolHost.{PAGE}", _unpinned, ("self",)),
        Hook(f"{POOLS}.mla.MLATokenToKVPoolHost.{PAGE}", _unpinned, ("self",)),
    ),
    requires=(
        f"{POOLS}.base.{RESERVE}",
        f"{POOLS}.mha.MHATokenToKVPoolHost.backup_from_device_all_layer",
        f"{POOLS}.mla.MLATokenToKVPoolHost.backup_from_device_all_layer",
    ),
    attach=_add,
)
