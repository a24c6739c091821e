"""The README's second command: lint and types, unit tests, numeric tests as other CPUs compute,
end-to-end tests. What fails soonest comes first."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from toolkit.setup import libraries, say, timings, touched
from toolkit.setup.layout import SetupLayout, tool_environment
from toolkit.setup.scopes import DEFAULT, FAST, FULL, SCOPE

_CODE = ("toolkit", "patches", "tests", "setup.py")

_SECRETS = (
    # Nothing is sent anywhere, neither a key that was found nor a question for a newer release.
    "--no-validate", "--no-update-check",
    "--git-history=none", "--exclude=.venv", "--exclude=build", "--no-binary",
    "--no-extract-archives", "--redact", "--quiet",
)  # fmt: skip

UNIT, END_TO_END = "unit tests", "end-to-end tests"
CHECKOUT = "tests/unit/checkout"
"""Tests that read the whole checkout (names, links, figures, checklists) and run none of it. A
change of any file can break them, so that `lint` and the hooks before a commit run them, too."""
SEVERAL = "router tests with two relays and frames"
"""Of a router of several processes, with `--full`: whatever one process does, several do too."""
TESTS_FAILED = "(exit 1)"
"""How a step that ran all its tests ends in what `_run_all` says, where some have failed."""
NOTHING_TO_RUN = 5
"""pytest's exit status when it found no test: `-k` chose none of these."""

UNIT_HANGS_S = 300
"""The slowest unit test takes a tenth of it on a busy machine. One that hangs ends its process."""

TWO = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
"""End-to-end tests in two processes (`tests/e2e/groups.py` says which go together)."""

Step = Tuple[str, List[str]]


def lint_steps(layout: SetupLayout) -> List[Step]:
    """What is wrong whatever the tests say: the first that fails ends the run.

    A check of the whole checkout is one more line here, the quicker before the slower. CI runs this
    list, and so does `pre-commit` (`python3 -m toolkit.setup lint`).
    """
    ruff = str(layout.venv / "bin" / "ruff")
    code = [name for name in _CODE if (layout.root / name).exists()]
    return [
        ("ruff check", [ruff, "check", *code]),
        ("ruff format", [ruff, "format", "--check", *code]),
        ("spelling", [str(layout.python), "-m", "codespell_lib"]),
        ("secrets", [str(layout.venv / "bin" / "kingfisher"), "scan", *_SECRETS, "."]),
        ("import contracts", [str(layout.venv / "bin" / "lint-imports"), "--no-cache"]),
        (
            "documents",
            [str(layout.python), "-m", "mkdocs", "build", "-q", "-s", "-f", "docs/mkdocs.yml"],
        ),
        ("mypy", [str(layout.python), "-m", "mypy"]),
        ("checks of the checkout", [str(layout.python), "-m", "pytest", "-q", "-n", "2", CHECKOUT]),
    ]


def test_steps(
    layout: SetupLayout, unit_only: bool, scope: str, extra: Sequence[str]
) -> List[Step]:
    """Every step runs, the later ones too when an earlier fails; the slowest tests last.

    `extra` goes to pytest as it is (`-k`, `-x`, paths ...). Unit tests run in three more processes
    than there are cores, since half of their time they wait; end-to-end tests in two, so that one
    uses the cores while the other waits; tests named
    by path one after the other.
    """
    given = _paths(layout, extra)
    pytest = [str(layout.python), "-m", "pytest"]
    kernels = []
    if _includes(layout, touched.KERNELS, scope, given):
        kernels = _other_kernels(layout, scope, extra, given)
    if given:
        return [*kernels, ("named tests", [*pytest, *extra])]
    processes = str(len(os.sched_getaffinity(0)) + 3)
    spread = ["-n", processes, "--dist", "worksteal", f"--timeout={UNIT_HANGS_S}"]
    unit = [*pytest, *spread, "tests/unit", f"--ignore={CHECKOUT}", *extra]
    steps = [(UNIT, unit), *kernels]
    if scope == FULL:
        other = ["env", "TOOLKIT_TEST_RELAYS=2", "TOOLKIT_TEST_FRAMES=1"]
        steps.append((SEVERAL, [*other, *pytest, *spread, "tests/unit/router", *extra]))
    if not unit_only and scope != FAST and (layout.root / "tests" / "e2e").is_dir():
        steps.append((END_TO_END, [*pytest, *TWO, "tests/e2e", *extra]))
    return steps


def _includes(layout: SetupLayout, part: str, scope: str, given: Sequence[str]) -> bool:
    """Whether this run has that part of the tests (`toolkit.setup.touched`)."""
    if scope == FULL or given:
        return True
    return scope == DEFAULT and part in touched.touched(layout.root)


def _paths(layout: SetupLayout, extra: Sequence[str]) -> List[str]:
    """The words that name tests by their files or folders."""
    return [word for word in extra if (layout.root / word.split("::")[0]).exists()]


def _other_kernels(
    layout: SetupLayout, scope: str, extra: Sequence[str], given: Sequence[str]
) -> List[Step]:
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
    every = ["--every"] if scope == FULL else []
    command = [str(layout.python), "-m", "toolkit.setup.kernels", *every, *words]
    return [("numeric tests under other kernels", command)]


def run(
    layout: SetupLayout,
    unit_only: bool,
    extra: Sequence[str],
    scope: str = DEFAULT,
    release: Optional[Path] = None,
) -> int:
    """Run all steps, with the SGLang in folder `release` if there is one, and say where the time
    went. Returns the exit status."""
    if not unit_only and _includes(layout, touched.BROWSER, scope, _paths(layout, extra)):
        libraries.ensure_browser()
    before = touched.now(layout.root)  # whoever goes on editing has tested nothing of that
    if scope == DEFAULT and not _paths(layout, extra):
        known = touched.recorded(layout.root)
        for part, digest in before.items():
            if known.get(part) == digest:
                say.line(f"left out, as the change touches nothing that it tries: {part}")
    with tempfile.TemporaryDirectory(prefix="toolkit-tests-") as folder:
        record = Path(folder) / "record.jsonl"
        # Tests that the user names all run, however long they take.
        chosen = FULL if _paths(layout, extra) else scope
        environment = {**tool_environment(), timings.RECORD: str(record), SCOPE: chosen}
        if release is not None:
            environment["PYTHONPATH"] = str(release)
        took: List[Tuple[str, float]] = []
        failed = _run_all(layout, unit_only, extra, scope, environment, took)
        timings.tell(record, took)
        failures = [test for test, _ in timings.read(record).failures]
    whole = scope != FAST and not (unit_only or extra or release)
    if whole and _all_ran(failed, failures):
        _keep(layout.root, before, failures)
    if failed:
        say.line(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def _all_ran(failed: Sequence[str], failures: Sequence[str]) -> bool:
    """Whether every test ran: all that went wrong are tests that failed, and each was said."""
    known = bool(failures) or not failed
    return known and all(each.endswith(TESTS_FAILED) for each in failed)


def _keep(root: Path, digests: Dict[str, str], failures: Sequence[str]) -> None:
    """Write the record of the parts that have passed: not those with a test in `failures`."""
    fell = touched.with_tests(root, {test.split("::")[0] for test in failures})
    passed = {part: digest for part, digest in digests.items() if part not in fell}
    known = touched.recorded(root)
    if any(known.get(part) != digest for part, digest in passed.items()):
        touched.record(root, passed)
        which = f"all parts but {', '.join(fell)} have" if fell else "every part has"
        say.line(f"wrote {touched.RECORD}: {which} passed with its files of this run")


def lint(layout: SetupLayout) -> int:
    """Run the lint steps alone. Returns the exit status."""
    problem = _run_lint(layout, tool_environment(), [])
    if problem:
        say.line(f"FAILED: {problem}")
    return 1 if problem else 0


def _run_lint(
    layout: SetupLayout, environment: Dict[str, str], took: List[Tuple[str, float]]
) -> str:
    """The first step that failed, in words; empty where all passed."""
    for name, command in lint_steps(layout):
        status = _run_one(layout, name, command, environment, took)
        if status:
            return f"{name} (exit {status})"
    return ""


def _run_all(
    layout: SetupLayout,
    unit_only: bool,
    extra: Sequence[str],
    scope: str,
    environment: Dict[str, str],
    took: List[Tuple[str, float]],
) -> List[str]:
    """What failed, in words. Adds the seconds of each step to `took`."""
    problem = _run_lint(layout, environment, took)
    if problem:
        return [f"{problem}; mend this first, the tests did not run"]
    failed, empty = [], []
    for name, command in test_steps(layout, unit_only, scope, extra):
        status = _run_one(layout, name, command, environment, took)
        if status == NOTHING_TO_RUN and "pytest" in command:
            empty.append(name)
        elif status:
            failed.append(f"{name} (exit {status})")
    only_unit = unit_only or scope == FAST
    if (UNIT in empty and (only_unit or END_TO_END in empty)) or "named tests" in empty:
        failed.append("no test was chosen")
    return failed


def _run_one(
    layout: SetupLayout,
    name: str,
    command: List[str],
    environment: Dict[str, str],
    took: List[Tuple[str, float]],
) -> int:
    say.line(f"{name} ...")
    start = time.monotonic()
    status = subprocess.run(
        command, cwd=layout.root, env=environment, stdin=subprocess.DEVNULL, check=False
    ).returncode
    took.append((name, time.monotonic() - start))
    nothing = status == NOTHING_TO_RUN and "pytest" in command
    word = "had nothing to run" if nothing else "failed" if status else "passed"
    say.line(f"{name} {word} in {took[-1][1]:.1f} s")
    return status
