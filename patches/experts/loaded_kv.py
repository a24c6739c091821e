"""Hooks on hierarchical cache bringing KV back from host memory: no forward computed it here."""

from collections.abc import Callable
from typing import Any

from patches.base import Hook

LOADS = (
    "sglang.srt.managers.cache_controller.HiCacheController.load",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController.load",
)


def on_load(forget: Callable[[Any], None]) -> tuple[Hook, ...]:
    """Hooks that call `forget` with the device slots [T] that were filled."""

    def around(original: Any, controller: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(controller, *args, **kwargs)
        if loaded is not None:
            forget(loaded)
        return loaded

    return tuple(Hook(path, around, ("self", "host_indices")) for path in LOADS)
