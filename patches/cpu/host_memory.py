"""CPU shim: host memory that feeds no GPU needs no pinning.

Mends `srt/mem_cache/pool_host/common.py:144` (SGLang 0.5.21), where `_cuda_host_register` calls
`torch.cuda.cudart()`, which raises in a CPU build of torch. The routed-experts capturer and
HiCache allocate through it.
"""

from __future__ import annotations

from typing import Any

from patches.base import EITHER, Hook, Patch


def _skip_registration(_original: Any, buffer: Any, *_: Any, **__: Any) -> None:
    """Leave `buffer` as ordinary pageable memory."""


PATCH = Patch(
    name="cpu_host_memory",
    why="pinning host memory calls into CUDA, which a CPU worker has not",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.mem_cache.pool_host.common._cuda_host_register",
            _skip_registration,
            ("buffer",),
        ),
    ),
)
