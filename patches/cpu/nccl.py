"""Ranks of a CPU worker do not look for NCCL.

Beside a CUDA build of torch the library is there, GPU or not, and SGLang 0.5.21
(`srt/distributed/device_communicators/pynccl.py:112`) binds it to the group's device: `cpu`, which
ends every worker of several ranks. Without the library SGLang goes on without it, as here.
"""

from patches.base import EITHER, Hook, Patch
from patches.layers import Original


def _absent(original: Original[None], library: object, so_file: str | None = None) -> None:
    raise OSError("ranks on a CPU have no use for NCCL")


PATCH = Patch(
    name="cpu_nccl",
    why="a CUDA build of torch brings NCCL, which cannot be bound to a CPU",
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.distributed.device_communicators.pynccl_wrapper.NCCLLibrary.__init__",
            _absent,
            ("self", "so_file"),
        ),
    ),
    requires=("sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator",),
    cpu_only=True,
)
