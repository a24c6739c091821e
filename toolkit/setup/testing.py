"""The README's second command: lint, types, numeric tests as other CPUs compute, then all tests."""

from __future__ import annotations

import subprocess
import time
from typing import List, Sequence, Tuple

from toolkit.setup import libraries, say
from toolkit.setup.layout import Layout, tool_environment

_CODE = ("toolkit", "patches", "tests", "setup.py")


def steps(layout: Layout, unit_only: bool, extra: Sequence[str]) -> List[Tuple[str, List[str]]]:
    """(name, command) of each step; pytest last, so that its closing line closes the output.

    `extra` goes to pytest as it is (`-k`, `-x`, paths ...).
    """
    binaries = layout.venv / "bin"
    code = [name for name in _CODE if (layout.root / name).exists()]
    tests = ["tests/unit"] if unit_only else ["tests/unit", "tests/e2e"]
    given = _paths(layout, extra)
    paths = [] if given else [name for name in tests if (layout.root / name).is_dir()]
    return [
        ("ruff check", [str(binaries / "ruff"), "check", *code]),
        ("ruff format", [str(binaries / "ruff"), "format", "--check", *code]),
        ("mypy", [str(layout.python), "-m", "mypy"]),
        *_other_kernels(layout, extra, given),
        ("pytest", [str(layout.python), "-m", "pytest", *paths, *extra]),
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
    for name, command in steps(layout, unit_only, extra):
        say.line(f"{name} ...")
        start = time.monotonic()
        status = subprocess.run(
            command, cwd=layout.root, env=tool_environment(), stdin=subprocess.DEVNULL, check=False
        ).returncode
        if status != 0:
            failed.append(f"{name} (exit {status})")
        if name != "pytest" or status != 0:
            word = "failed" if status else "passed"
            say.line(f"{name} {word} in {time.monotonic() - start:.1f} s")
    if failed:
        say.line(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0
