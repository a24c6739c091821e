"""The README's second command: lint, types, numeric tests as other CPUs compute, then all tests."""

from __future__ import annotations

import os
import subprocess
import time
from typing import List, Sequence, Tuple

from toolkit.setup import libraries, say
from toolkit.setup.layout import Layout, tool_environment

_CODE = ("toolkit", "patches", "tests", "setup.py")


UNIT, END_TO_END = "unit tests", "end-to-end tests"
NOTHING_TO_RUN = 5
"""pytest's exit status when it found no test: `-k` chose none of these."""


def steps(layout: Layout, unit_only: bool, extra: Sequence[str]) -> List[Tuple[str, List[str]]]:
    """(name, command) of each step; the slowest tests last.

    `extra` goes to pytest as it is (`-k`, `-x`, paths ...). Unit tests run in as many processes as
    there are cores; files of end-to-end tests two at a time, so that one uses the cores while the
    other waits; tests named by path one after the other.
    """
    binaries = layout.venv / "bin"
    code = [name for name in _CODE if (layout.root / name).exists()]
    given = _paths(layout, extra)
    pytest = [str(layout.python), "-m", "pytest"]
    if given:
        tests = [("named tests", [*pytest, *extra])]
    else:
        cores = str(max(2, len(os.sched_getaffinity(0))))
        spread = ["-n", cores, "--dist", "worksteal"]
        tests = [(UNIT, [*pytest, *spread, "tests/unit", *extra])]
        if not unit_only and (layout.root / "tests" / "e2e").is_dir():
            two = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
            tests.append((END_TO_END, [*pytest, *two, "tests/e2e", *extra]))
    return [
        ("ruff check", [str(binaries / "ruff"), "check", *code]),
        ("ruff format", [str(binaries / "ruff"), "format", "--check", *code]),
        ("mypy", [str(layout.python), "-m", "mypy"]),
        (
            "documents",
            [str(layout.python), "-m", "mkdocs", "build", "-q", "-s", "-f", "docs/mkdocs.yml"],
        ),
        *_other_kernels(layout, extra, given),
        *tests,
    ]


def _paths(layout: Layout, extra: Sequence[str]) -> List[str]:
    """The words that name tests by their files or folders."""
    return [word for word in extra if (layout.root / word.split("::")[0]).exists()]


def _other_kernels(
    layout: Layout, extra: Sequence[str], given: Sequence[str]
) -> List[Tuple[str, List[str]]]:
    """The step of `toolkit.setup.kernels`, with the user's own words.

    Left out where those choose tests by marker, or name only paths outside the unit tests.
    """
    unit = layout.root / "tests" / "unit"
    wanted = []
    for word in given:
        file = (layout.root / word.split("::")[0]).resolve()
        if file == unit or unit in file.parents or file in unit.parents:
            wanted.append(word)
    if (given and not wanted) or any(word.startswith("-m") for word in extra):
        return []
    words = [word for word in extra if word not in given or word in wanted]
    paths = [] if given else ["tests/unit"]
    command = [str(layout.python), "-m", "toolkit.setup.kernels", *paths, *words]
    return [("numeric tests under other kernels", command)]


def run(layout: Layout, unit_only: bool, extra: Sequence[str]) -> int:
    """Runs every step, the later ones too when an earlier fails. Returns the exit status."""
    if not unit_only:
        libraries.ensure_browser()
    failed = []
    empty = []
    for name, command in steps(layout, unit_only, extra):
        say.line(f"{name} ...")
        start = time.monotonic()
        status = subprocess.run(
            command, cwd=layout.root, env=tool_environment(), stdin=subprocess.DEVNULL, check=False
        ).returncode
        word = "failed" if status else "passed"
        if status == NOTHING_TO_RUN and "pytest" in command:
            empty.append(name)
            word = "had nothing to run"
        elif status != 0:
            failed.append(f"{name} (exit {status})")
        # pytest's own closing line says that all passed.
        if status or "pytest" not in command:
            say.line(f"{name} {word} in {time.monotonic() - start:.1f} s")
    if (UNIT in empty and (unit_only or END_TO_END in empty)) or "named tests" in empty:
        failed.append("no test was chosen")
    if failed:
        say.line(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0
