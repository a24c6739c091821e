"""CPU shim: host memory that feeds no GPU needs no pinning.

Mends `srt/mem_cache/pool_host/common.py:144` (SGLang 0.5.21), where `_cuda_host_register` calls
`torch.cuda.cudart()`, which raises in a CPU build of torch. The routed-experts capturer and
HiCache allocate through it. In 0.5.17 the capturer pins by torch itself, which raises, too.
"""

from typing import Any

from patches.base import EITHER, Hook, Patch, Variant

CAPTURER = "sglang.srt.state_capturer.base"


def _skip_registration(_original: Any, buffer: Any, *_: Any, **__: Any) -> None:
    """Leave `buffer` as ordinary pageable memory."""


def _unpinned(original: Any, cache: Any, *args: Any, **kwargs: Any) -> None:
    import torch

    zeros = torch.zeros
    torch.zeros = lambda *shape, pin_memory=False, **how: zeros(*shape, **how)
    try:
        original(cache, *args, **kwargs)
    finally:
        torch.zeros = zeros


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
    variants=(
        Variant("from 0.5.20", requires=(f"{CAPTURER}.ALLOC_MEMORY_FUNCS",)),
        Variant(
            "0.5.17",
            hooks=(
                Hook(
                    f"{CAPTURER}.BaseHostCache.__init__",
                    _unpinned,
                    ("self", "num_tokens", "num_layers", "topk_size", "name"),
                ),
            ),
        ),
    ),
)
