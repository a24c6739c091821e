"""`python -m tests.put_back COMMIT ...`: undo the product's part of a commit that mended a fault,
and run tests as a change would (`default` scope). A row for each commit, in Markdown.

Without `--tests` those run whose files the commit touched, as they are now; a fault is caught where
one of them fails. `--with PATCH` puts back a mutation written as a diff in place of a commit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit.setup.scopes import DEFAULT, SCOPE
from toolkit.setup.testing import NOTHING_TO_RUN

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("toolkit", "patches")
WAIT_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Tried:
    """What became of one fault. `failed`: tests that caught it."""

    name: str
    subject: str
    outcome: str
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    def row(self) -> str:
        """A line of the table."""
        by = ", ".join(f"`{test}`" for test in self.failed[:2])
        more = f" and {len(self.failed) - 2} more" if len(self.failed) > 2 else ""
        return f"| `{self.name}` | {self.subject} | {self.outcome} | {by}{more} |"


def git(
    folder: Path, *words: str, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *words], cwd=folder, input=given, capture_output=True, check=False
    )


def text(folder: Path, *words: str) -> str:
    """What a git command prints. RuntimeError: it failed."""
    done = git(folder, *words)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout.decode()


@contextmanager
def worktree() -> Iterator[Path]:
    """A checkout of HEAD of its own, with this one's environment."""
    with tempfile.TemporaryDirectory(prefix="toolkit-put-back-") as parent:
        folder = Path(parent) / "checkout"
        text(ROOT, "worktree", "add", "--detach", str(folder), "HEAD")
        try:
            (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
            yield folder
        finally:
            git(ROOT, "worktree", "remove", "--force", str(folder))


def undo(folder: Path, commit: str) -> bool:
    """Take the product's part of a commit out of the checkout; whether that could be done."""
    change = git(folder, "diff", "--binary", f"{commit}~", commit, "--", *PRODUCT).stdout
    return bool(change) and not git(folder, "apply", "-R", "--3way", given=change).returncode


def touched_tests(folder: Path, commit: str) -> list[str]:
    """Files of tests that the commit touched and that are still there."""
    names = text(folder, "show", "--name-only", "--format=", commit, "--", "tests").split()
    tests = [name for name in names if Path(name).name.startswith("test_")]
    return [name for name in tests if (folder / name).is_file()]


def run(folder: Path, tests: Sequence[str], most: int) -> tuple[int, list[str]]:
    """pytest's status, and the tests that failed, at most so many."""
    environment = os.environ | {"PYTHONPATH": str(folder), SCOPE: DEFAULT}
    command = [".venv/bin/python", "-m", "pytest", "-q", "-rfE", "--tb=no", "--maxfail", str(most)]
    command += ["-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    return done.returncode, [words[1] for words in lines if words[0] in ("FAILED", "ERROR")]


def put_back(folder: Path, fault: str, tests: Sequence[str], most: int, is_patch: bool) -> Tried:
    """Put one fault into the checkout, run the tests, and take it out again."""
    begin = time.monotonic()
    if is_patch:
        path = Path(fault)
        name, subject = path.stem, path.read_text().splitlines()[0].lstrip("# ")
        there = not git(folder, "apply", str(path.resolve())).returncode
    else:
        name, subject = text(folder, "show", "-s", "--format=%h%n%s", fault).strip().split("\n")
        there = undo(folder, fault)
    try:
        if not there:
            return Tried(name, subject, "cannot be put back by itself")
        chosen = list(tests) or touched_tests(folder, fault)
        status, failed = run(folder, chosen, most)
        outcome = "caught" if failed or status not in (0, NOTHING_TO_RUN) else "not caught"
        return Tried(name, subject, outcome, tuple(failed), time.monotonic() - begin)
    finally:
        text(folder, "reset", "--hard", "HEAD")
        text(folder, "clean", "-fdq", "-e", ".venv")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.put_back", description=__doc__)
    parser.add_argument("faults", nargs="+", metavar="COMMIT", help="or, with --with, diffs")
    parser.add_argument("--with", action="store_true", dest="patches", help="these are diffs")
    parser.add_argument("--tests", nargs="+", default=[], help="files or folders of tests")
    parser.add_argument("--most", type=int, default=3, help="stop after so many failures")
    options = parser.parse_args(arguments)
    print("| fault | what it was | | tests |\n| --- | --- | --- | --- |", flush=True)
    caught = put = 0
    with worktree() as folder:
        for fault in options.faults:
            tried = put_back(folder, fault, options.tests, options.most, options.patches)
            print(tried.row(), flush=True)
            put += tried.outcome != "cannot be put back by itself"
            caught += tried.outcome == "caught"
    print(f"\n{caught} of {put} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
