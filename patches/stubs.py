"""What importing SGLang needs on a machine without CUDA: stubs of its kernels, two operators."""

import sys
from pathlib import Path
from typing import Any

CPU_STUBS = Path(__file__).parent / "cpu_stubs"

_torchvision_library: Any = None
"""The registration lives as long as this object."""


def put_on_path() -> None:
    """Have `import sgl_kernel` and the like find the stubs, and torchvision its operators. Once in
    a process; a forked one has it from where it was forked."""
    if str(CPU_STUBS) not in sys.path:
        sys.path.insert(0, str(CPU_STUBS))
    declare_torchvision_operators()


def declare_torchvision_operators() -> None:
    """Declare the two operators that importing torchvision needs; once a process.

    PyPI's torchvision is a CUDA build; beside a CPU build of torch its C extension does not load,
    and `torchvision/_meta_registrations.py` fails on the undefined `torchvision::nms`. Beside a
    CUDA build the extension loads, GPU or not, and a second declaration would end the process.
    """
    global _torchvision_library
    if _torchvision_library is not None:
        return
    import torch

    if torch.version.cuda is not None or "torchvision" in sys.modules:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _torchvision_library = library
