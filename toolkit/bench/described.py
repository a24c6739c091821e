"""What a result says of itself: versions, machine, workload, options."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from toolkit.bench.target import Target
from toolkit.bench.workload import Workload

if TYPE_CHECKING:
    from toolkit.bench.session import Settings


def describe(
    target: Target, workload: Workload, settings: Settings, state: dict[str, Any] | None
) -> dict[str, Any]:
    """Enough to run it again, and to know what it ran on. Holds no prompt and no key."""
    source = asdict(settings.source)
    source = {
        key: str(value) if key in ("prompts", "trace", "tokenizer") else value
        for key, value in source.items()
    }
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
        "machine": {
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "system": platform.platform(),
        },
        "url": target.url,
        "model": target.model,
        "workload": {"name": workload.name, "hash": workload.digest, "requests": len(workload)},
        "source": source,
        "load": asdict(settings.load),
        "slo": asdict(settings.slo),
        "policies": (state or {}).get("policies"),
        "dispatch": (state or {}).get("dispatch"),
    }


def versions() -> dict[str, str | None]:
    """Versions of what takes part; None: not installed here."""
    from importlib.metadata import PackageNotFoundError, version

    from toolkit import __version__

    found: dict[str, str | None] = {"toolkit": __version__, "python": platform.python_version()}
    for name in ("sglang", "torch", "aiohttp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
