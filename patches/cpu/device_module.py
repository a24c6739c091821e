"""CPU shim: two functions that `torch.cpu` does not have.

Mends `srt/eplb/expert_distribution.py:325` (`is_current_stream_capturing`) and `:992`
(`empty_cache`) of SGLang 0.5.21, which ask `torch.get_device_module()` for them.
"""

from patches.base import EITHER, Patch


def _add_missing_functions() -> None:
    import torch

    additions = {"is_current_stream_capturing": lambda: False, "empty_cache": lambda: None}
    for name, function in additions.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


PATCH = Patch(
    name="cpu_device_module",
    why="the expert recorder asks the device module for functions that torch.cpu lacks",
    processes=EITHER,
    cpu_only=True,
    requires=("sglang.srt.eplb.expert_distribution",),
    attach=_add_missing_functions,
)
