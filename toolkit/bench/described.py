"""What a result says of itself: versions, machine, workload, options."""

import os
import platform
import time
from dataclasses import asdict
from typing import Any

from toolkit.bench.metrics import Slo
from toolkit.bench.runner import BenchLoad
from toolkit.bench.source import Source
from toolkit.bench.target import Target
from toolkit.bench.workload import Workload


def describe(
    target: Target,
    workload: Workload,
    source: Source,
    load: BenchLoad,
    slo: Slo,
    state: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Enough to run it again, and to know what it ran on. Holds no prompt and no key."""
    told = {
        key: str(value) if key in ("prompts", "trace", "tokenizer") else value
        for key, value in asdict(source).items()
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
        "urls": target.urls,
        "model": target.model,
        "workload": {"name": workload.name, "hash": workload.digest, "requests": len(workload)},
        "source": told,
        "load": asdict(load),
        "slo": asdict(slo),
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
