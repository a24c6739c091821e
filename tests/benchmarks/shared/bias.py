"""By how much the simulator is off, as `validation --record` last measured it on real workers."""

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import RESULTS


def last_validation(folder: Path = RESULTS) -> dict[str, Any] | None:
    """The newest recorded result that compared PD workers with the simulator; None: no such."""
    path = folder / "validation.jsonl"
    if not path.exists():
        return None
    records = [json.loads(line) for line in path.read_text().splitlines()]
    found = [each for each in records if "--set plain" not in each["command"]]
    return found[-1] if found else None


def bias(figure: str, folder: Path = RESULTS) -> dict[str, float]:
    """Simulated divided by real, by policy: the geometric mean over the workloads that keep ranks
    full (the closed loops). Empty: never recorded."""
    record = last_validation(folder)
    logs: dict[str, list[float]] = defaultdict(list)
    for name, pair in (record["figures"]["pairs"] if record else {}).items():
        workload, _, policy = name.partition(" ")
        if workload != "open":
            logs[policy].append(math.log(pair["ratio"][figure]))
    return {policy: math.exp(statistics.fmean(each)) for policy, each in logs.items()}
