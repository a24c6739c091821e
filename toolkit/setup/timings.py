"""Where the time of a test run went: its steps, its slowest tests, its starts of real workers.

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
        elif "start" in entry:
            found.starts.append((entry["start"], entry["seconds"], entry["by"]))
    return found


def tell(path: Path, steps: List[Tuple[str, float]]) -> None:
    """Print it all: starts, the slowest tests, the steps."""
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
