"""Which records in `results/` are older than the code that they measure, and their commands again.

`python -m tests.benchmarks --stale` lists them: what has changed since the record's commit among
the paths that its benchmark names (`MEASURES`). A list, not a check: code must be able to change.
`--rerecord` runs their commands again, the oldest first; `--only NAME` those of some benchmarks,
`--minutes N` begins none later.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PACKAGE = "tests.benchmarks."
IN_NAME = re.compile(r".+-([0-9a-f]{7,40})")
"""A file whose name ends in a commit has it for all its lines."""


@dataclass(frozen=True)
class Record:
    """The last line of a file that one command made. `commit`: None where it does not say."""

    benchmark: str
    command: str
    commit: str | None
    date: str

    @property
    def module(self) -> str:
        return self.command.partition(" ")[0]


@dataclass(frozen=True)
class Standing:
    """How a record stands: the measured files that have changed since, or why nobody can say."""

    record: Record
    changed: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def stale(self) -> bool:
        return bool(self.changed or self.unknown)


def records(folder: Path) -> list[Record]:
    """The last of each command, the oldest first; commands that are benchmarks."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.jsonl")):
        of_all = IN_NAME.fullmatch(path.stem)
        for line in path.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            command = str(row.get("command", ""))
            if command.startswith(PACKAGE):
                commit = row.get("commit") or (of_all and of_all[1])
                found[command] = Record(
                    str(row["benchmark"]), command, commit, str(row.get("date") or "")
                )
    return sorted(found.values(), key=lambda record: record.date)


def measures(module: str, root: Path = ROOT) -> tuple[str, ...]:
    """The paths that a benchmark names. It is not imported.

    Raises:
        LookupError: it is not there, or names none.
    """
    path = root / (module.replace(".", "/") + ".py")
    if not path.exists():
        raise LookupError(f"{module} is not there any more")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MEASURES":
            named: tuple[str, ...] = ast.literal_eval(node.value)
            return named
    raise LookupError(f"{module} does not say what it measures (MEASURES)")


def standing(record: Record, root: Path = ROOT) -> Standing:
    """Against what is checked out."""
    try:
        paths = measures(record.module, root)
    except LookupError as error:
        return Standing(record, unknown=str(error))
    if record.commit is None:
        return Standing(record, unknown="the record names no commit")
    asked = ["git", "-C", str(root), "diff", "--name-only", record.commit, "--", *paths]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        return Standing(record, unknown=f"commit {record.commit} is not in this repository")
    python = [name for name in done.stdout.splitlines() if not name.endswith(".md")]
    return Standing(record, tuple(python))


def why_not(record: Record) -> str:
    """Why its command cannot be run here; empty when it can."""
    lacking = [
        word for word in shlex.split(record.command)[1:]
        if word.startswith("/") and not Path(word).exists()
    ]  # fmt: skip
    return f"{', '.join(lacking)} is not there" if lacking else ""


def show(found: Sequence[Standing]) -> None:
    """A line for each stale record."""
    stale = [each for each in found if each.stale]
    for each in stale:
        record = each.record
        what = each.unknown or f"{len(each.changed)} files changed, such as {each.changed[0]}"
        print(f"{record.date}  {record.commit or '-':9}  {record.command}\n    {what}")
    print(f"{len(stale)} of {len(found)} records are older than what they measure")


def rerecord(found: Sequence[Standing], only: Sequence[str], minutes: float) -> int:
    """Run the commands of the stale ones; how many failed.

    Raises:
        SystemExit: what is checked out is no commit, so the new records could not name one.
    """
    asked = ["git", "-C", str(ROOT), "status", "--porcelain", "--", "toolkit", "patches", "tests"]
    if subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip():
        raise SystemExit("commit your changes first: a record names the commit that it measured")
    failed, until = 0, time.monotonic() + 60 * minutes
    for record in _wanted(found, only):
        if reason := why_not(record):
            print(f"left out: {record.command}: {reason}", flush=True)
            continue
        if time.monotonic() >= until:
            print(f"no time left for: {record.command}", flush=True)
            continue
        words = shlex.split(record.command)
        words += [] if "--record" in words else ["--record"]
        print(f"running: {shlex.join(words)}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode != 0
        )
    return failed


def _wanted(found: Sequence[Standing], only: Sequence[str]) -> Iterator[Record]:
    for each in found:
        if each.stale and (not only or each.record.benchmark in only):
            yield each.record


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stale", action="store_true", help="list records older than their code")
    what.add_argument("--rerecord", action="store_true", help="run the commands of those again")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these benchmarks")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none later")
    options = parser.parse_args()
    found = [standing(record) for record in records(RESULTS)]
    if options.stale:
        show(found)
    elif rerecord(found, options.only, options.minutes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
