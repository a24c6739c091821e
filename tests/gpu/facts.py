"""What a figure was measured on and with; nothing here fails where something is missing."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import commit

PACKAGES = (
    "sglang", "sglang-kernel", "torch", "triton", "transformers", "nixl-cu13",
    "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Of the packages that are there, and Python's."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device(kind: str) -> dict[str, Any]:
    """Name and memory of the GPU, or of the CPU."""
    if kind == "cpu":
        import os

        return {"kind": "cpu", "name": platform.processor() or platform.machine(),
                "cores": os.cpu_count()}  # fmt: skip
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "kind": kind,
        "name": properties.name,
        "memory_mib": properties.total_memory // 2**20,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def cuda_problem() -> str:
    """Why there is no CUDA device here; "" where there is one. In a process of its own: a runner
    that has touched CUDA holds memory on the device that its steps measure."""
    probe = "import torch; print(torch.version.cuda, torch.cuda.device_count())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=120
        )
    except subprocess.TimeoutExpired:
        return "asking torch for its devices took more than 120 s"
    if done.returncode:
        return f"torch cannot be imported: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    built, count = done.stdout.split()
    if built == "None":
        return "torch is built without CUDA"
    return "" if int(count) else "torch sees no CUDA device"


def checkout() -> dict[str, Any]:
    """Commit of this checkout; None where git is not there."""
    try:
        return {"commit": commit(), "root": Path(__file__).resolve().parents[2].name}
    except OSError:
        return {"commit": None, "root": Path(__file__).resolve().parents[2].name}
