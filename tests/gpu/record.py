"""One JSON a step: written whole or not at all, and read again by whoever resumes."""

import json
import math
import os
from pathlib import Path
from typing import Any

from tests.gpu.errors import GpuCheckError

STATES = ("ok", "failed", "timed out")
KEYS = ("step", "status", "seconds", "device", "versions", "command", "commit", "figures", "error")


def write(path: Path, result: dict[str, Any]) -> None:
    """Atomically: a run that is killed leaves no half of a result. NaN becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(_plain(result), indent=1, sort_keys=False) + "\n")
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """GpuCheckError: it is no result of a step."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise GpuCheckError(f"{path} cannot be read ({error}): remove it") from error
    lacking = [key for key in KEYS if not isinstance(found, dict) or key not in found]
    if lacking or found["status"] not in STATES:
        raise GpuCheckError(f"{path} is no result of a step (no {', '.join(lacking) or 'status'})")
    return dict(found)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
