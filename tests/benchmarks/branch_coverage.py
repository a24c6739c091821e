"""What the unit tests of `toolkit/decide` and `toolkit/policies` run of them, by branch.

They are tried by `TESTS`: those that mirror them, and the router's of two parts that moved to
`decide`. A branch that only other tests of the router or the simulator take counts as missed.
Nothing to compare with: the numbers are absolute. `percent` counts lines and branches together, as
coverage.py does.
`missed` names the lines that nothing runs, and the branches that nobody takes: `12->14`, or
`12->exit` where line 12 could end its function.

keys: decide_percent, policies_percent, decide_branches, policies_branches; more: lines of each,
missed by file
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments

MEASURES = ("toolkit/decide", "toolkit/policies", "tests/unit/decide", "tests/unit/policies")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("decide", "policies")
TESTS = (
    "tests/unit/decide",
    "tests/unit/policies",
    "tests/unit/router/test_admission.py",
    "tests/unit/router/test_returns.py",
    "tests/unit/test_waiting_work.py",
)


def main() -> None:
    """Run the tests and print the line."""
    options = arguments(__doc__)
    result = Result()
    packages, tests = (PACKAGES[:1], TESTS[:1]) if options.quick else (PACKAGES, TESTS)
    result.keys.update(figures(measured(packages, tests)["files"], packages))
    for path, missed in result.keys["missed"].items():
        print(f"{path}: {' '.join(missed)}")
    result.emit(samples=1)


def measured(packages: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    """coverage.py's report of a run of these tests; raises when one of them fails."""
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        data = f"--data-file={folder}/data"
        tool = [sys.executable, "-m", "coverage"]
        source = "--source=" + ",".join(f"toolkit.{name}" for name in packages)
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full", *tests]
        subprocess.run([*tool, "run", "--branch", data, source, *pytest], cwd=ROOT, check=True)
        subprocess.run([*tool, "json", data, "-q", "-o", f"{folder}/report"], cwd=ROOT, check=True)
        report: dict[str, Any] = json.loads(Path(folder, "report").read_text())
        return report


def figures(files: dict[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    """The keys, of coverage.py's report by file."""
    found: dict[str, Any] = {}
    for name in packages:
        sums: Counter[str] = Counter()
        for path, file in files.items():
            if path.startswith(f"toolkit/{name}/"):
                sums.update({k: v for k, v in file["summary"].items() if isinstance(v, int)})
        run = sums["covered_lines"] + sums["covered_branches"]
        there = sums["num_statements"] + sums["num_branches"]
        found[f"{name}_percent"] = 100 * run / there
        found[f"{name}_branches"] = f"{sums['covered_branches']} of {sums['num_branches']}"
        found[f"{name}_lines"] = f"{sums['covered_lines']} of {sums['num_statements']}"
    found["missed"] = {path: missed for path, file in files.items() if (missed := _missed(file))}
    return found


def _missed(file: dict[str, Any]) -> list[str]:
    lines = set(file["missing_lines"])
    # A line that does not run takes no branch either.
    branches = [(begin, end) for begin, end in file["missing_branches"] if begin not in lines]
    return [
        *map(str, sorted(lines)),
        *(f"{begin}->{'exit' if end < 0 else end}" for begin, end in branches),
    ]


if __name__ == "__main__":
    main()
