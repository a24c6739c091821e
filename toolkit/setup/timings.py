"""Where the time of a test run went (its steps, its slowest tests, its starts of real workers), and
what failed.

Tests write to a file of JSON lines (`tests/record.py`), named by an environment variable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

from toolkit.setup import say

RECORD = "TOOLKIT_TEST_RECORD"
"""In the environment of the tests: the file to which they append."""
SLOWEST = 10


@dataclass
class Timings:
    """What the file says. `tests`: seconds of each, fixtures included; `starts`: what was started,
    seconds, and the test that asked for it first."""

    tests: Dict[str, float] = field(default_factory=dict)
    starts: List[Tuple[str, float, str]] = field(default_factory=list)
    failures: List[Tuple[str, str]] = field(default_factory=list)
    """Test and error, those of a fixture's end, too."""

    def slowest(self) -> List[Tuple[str, float]]:
        return sorted(self.tests.items(), key=lambda each: -each[1])[:SLOWEST]


def read(path: Path) -> Timings:
    """What was recorded; a line that a killed process left unfinished is passed over."""
    found = Timings()
    if not path.exists():
        return found
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "test" in entry:
            found.tests[entry["test"]] = found.tests.get(entry["test"], 0.0) + entry["seconds"]
        elif "failed" in entry:
            found.failures.append((entry["failed"], entry["why"]))
        elif "start" in entry:
            found.starts.append((entry["start"], entry["seconds"], entry["by"]))
    return found


def tell(path: Path, steps: List[Tuple[str, float]]) -> None:
    """Print it all: starts, the slowest tests, the steps, and again what failed: the end of a log
    is what people are shown first."""
    found = read(path)
    if found.starts:
        total = sum(seconds for _, seconds, _ in found.starts)
        say.line(f"{len(found.starts)} starts of real workers, {total:.0f} s in all:")
        for name, seconds, test in found.starts:
            say.line(f"  {seconds:6.1f} s  {name} ({test})")
    if found.tests:
        say.line(f"the slowest of {len(found.tests)} tests, with their fixtures:")
        for name, seconds in found.slowest():
            say.line(f"  {seconds:6.1f} s  {name}")
    say.line("steps:")
    for name, seconds in [*steps, ("in all", sum(seconds for _, seconds in steps))]:
        say.line(f"  {seconds:6.1f} s  {name}")
    for test, why in found.failures:
        say.line(f"failed: {test}")
        for text in why.splitlines():
            say.line(f"  {text}")
