"""What accelerators this machine shows, without importing torch."""

import os
import shutil
import subprocess
from functools import cache


@cache
def visible_gpus() -> tuple[str, ...]:
    """Names for CUDA_VISIBLE_DEVICES of the GPUs usable here, in order; empty when none is seen."""
    fixed = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = _nvidia_smi("index")
    if not listed:
        return ()
    if fixed is not None:
        return tuple(x.strip() for x in fixed.split(",") if x.strip() and x.strip() != "-1")
    return listed


@cache
def gpu_free_mib() -> tuple[int, ...]:
    """Free memory in MiB of every GPU that nvidia-smi lists."""
    return tuple(int(x) for x in _nvidia_smi("memory.free") if x.isdigit())


def _nvidia_smi(field: str) -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
