"""Hooks on hierarchical cache bringing KV back from host memory: no forward computed it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from patches.base import Hook
from patches.layers import Original

if TYPE_CHECKING:
    from torch import Tensor


LOADS = (
    "sglang.srt.managers.cache_controller.HiCacheController.load",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.load",
)


def on_load(forget: Callable[[Tensor], None]) -> tuple[Hook, ...]:
    """Hooks that call `forget` with the device slots [T] that were filled."""

    def around(
        original: Original[Tensor | None], controller: object, *args: object, **kwargs: object
    ) -> Tensor | None:
        loaded = original(controller, *args, **kwargs)
        if loaded is not None:
            forget(loaded)
        return loaded

    return tuple(Hook(path, around, ("self", "host_indices")) for path in LOADS)
