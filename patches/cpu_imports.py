"""What must be in place before SGLang is imported for the CPU, in whichever process that is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

CPU_STUBS = Path(__file__).parent / "cpu_stubs"

_library: Any = None
"""The registration of torchvision's operators lives as long as this object."""


def prepare() -> None:
    """Once in a process; a forked one has it from where it was forked."""
    # The first request with a penalty, say, would have its scheduler wait for g++, half a minute on
    # a busy machine, and all others with it.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if str(CPU_STUBS) not in sys.path:
        sys.path.insert(0, str(CPU_STUBS))
    declare_torchvision_operators()


def declare_torchvision_operators() -> None:
    """Declare the two operators that importing torchvision needs.

    PyPI's torchvision is a CUDA build; beside a CPU build of torch its C extension does not load,
    and `torchvision/_meta_registrations.py` fails on the undefined `torchvision::nms`.
    """
    global _library
    if _library is not None:
        return
    import torch

    _library = torch.library.Library("torchvision", "FRAGMENT")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
