"""What `toolkit plan` finds for a shipped recipe, as the page about plans shows it.

The command is a user's: `toolkit plan cpu-eldr` with a rate and two limits, the shipped costs, and
its own budget. Its JSON is what is kept.

keys: `met`, whether the plan is within the limits; `split` (prefill and decode workers) and
`policies` (of both); `good`, the share of requests within both limits, and `goodput`, those a
second; the same of the baseline, as `baseline_...`; for each of GAINS `NAME_ratio`, the plan
divided by the baseline; `matters`, settings that matter, and `not_looked_at`; `simulations`,
`cpu_s`.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from toolkit.cli.plan import MISSED

MEASURES = ("toolkit/plan", "toolkit/simulate", "toolkit/policies", "launch/cpu-eldr.yaml")
RECIPE = "cpu-eldr"
LIMITS = ("--rate", "3", "--slo-ttft-ms", "2000", "--slo-tpot-ms", "20")
GAINS = {
    "goodput": "goodput_s",
    "ttft": "ttft_mean",
    "tpot": "tpot_mean",
}
"""Ours, and the plan's name."""


def found(seconds: int, seeds: int, budget: int) -> dict[str, Any]:
    """What the command writes."""
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        told = Path(folder) / "plan.json"
        asked = (*LIMITS, "--seconds", str(seconds), "--seeds", str(seeds), "--budget", str(budget))
        command = [sys.executable, "-m", "toolkit", "plan", RECIPE, *asked, "--json", str(told)]
        status = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        if status not in (0, MISSED):
            raise SystemExit(f"toolkit plan ended with {status}")
        plan: dict[str, Any] = json.loads(told.read_text())
    return plan


def shown(plan: dict[str, Any]) -> dict[str, Any]:
    """The keys of a plan."""
    keys: dict[str, Any] = {"met": plan["met"], "simulations": plan["simulations"]}
    for name, prefix in (("plan", ""), ("baseline", "baseline_")):
        side = plan[name]
        keys[f"{prefix}split"] = side["split"]
        keys[f"{prefix}policies"] = [side["prefill_policy"], side["decode_policy"]]
        for ours, theirs in (("good", "good_share"), ("goodput", "goodput_s")):
            for key, value in side["predicted"][theirs].items():
                keys[key.replace(theirs, f"{prefix}{ours}")] = value
    for ours, theirs in GAINS.items():
        for key, value in plan["gain"][theirs].items():
            keys[key.replace("ratio", f"{ours}_ratio")] = value
    keys["matters"] = [each["knob"] for each in plan["knobs"] if each["verdict"] == "matters"]
    keys["not_looked_at"] = plan["not_looked_at"]
    return keys


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    seconds, seeds, budget = (60, 2, 60) if options.quick else (300, 3, 200)
    plan = found(seconds, seeds, budget)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.keys |= shown(plan) | {"cpu_s": used.ru_utime + used.ru_stime}
    result.emit(samples=plan["simulations"])


if __name__ == "__main__":
    main()
