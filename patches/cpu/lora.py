"""CPU shim: LoRA's small host tensors are not pinned.

SGLang 0.5.21 asks for `pin_memory=True` wherever an adapter's layers and its `torch_native` backend
make a tensor on the host (`srt/lora/layers.py:137`, `srt/lora/backend/torch_backend.py:237`), which
a CPU build of torch refuses. These two modules get a `torch` here that leaves the word out, and to
pin a tensor of a worker with LoRA does nothing.
"""

from typing import Any

from patches.base import Hook, Patch, Process, resolve

MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
MODULES = ("sglang.srt.lora.layers", "sglang.srt.lora.backend.torch_backend")


class Unpinned:
    """torch, but what it makes is ordinary memory."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **options: Any) -> Any:
        return self._torch.tensor(*args, **options)

    def zeros(self, *args: Any, pin_memory: bool = False, **options: Any) -> Any:
        return self._torch.zeros(*args, **options)

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> Any:
        return self._torch.empty(*args, **options)


def _as_it_is(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _unpinned(original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    import torch

    torch.Tensor.pin_memory = _as_it_is
    for name in MODULES:
        module = resolve(name)
        if not isinstance(module.torch, Unpinned):
            module.torch = Unpinned(module.torch)
    original(manager, *args, **kwargs)


PATCH = Patch(
    name="cpu_lora",
    why="LoRA pins host memory, which a CPU worker has not",
    processes=frozenset({Process.SCHEDULER}),
    cpu_only=True,
    hooks=(Hook(f"{MANAGER}.__init__", _unpinned, ("self",)),),
    requires=MODULES,
)
