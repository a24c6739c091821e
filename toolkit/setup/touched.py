"""Parts of the tests that run for a change only where it touches what they try.

A test says its part by `pytest.mark.touched("...")`; `slow` unit tests of some folders are parts,
too, and so are the numeric tests under other kernels. The files of a part are those of its tests
and all that these run (`toolkit.setup.imports`).

`tests/passed.json` keeps, for each part, a digest of its files: as they were when it last passed as
a whole. The test command runs a part whose files now have another digest, and `--full` runs them
all. Git is not asked: a checkout without history knows as much.

`python -m toolkit.setup.touched` says what a run would do; `--files PART` lists a part's files;
`--record PART ...` writes the digests, after a run in which these parts have passed (a whole run
writes those of all parts without a test that failed by itself).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Dict, FrozenSet, List, Optional, Sequence, Set

from toolkit.setup import kernels, say
from toolkit.setup.imports import How, Judge, Sources, below

RECORD = Path("tests") / "passed.json"
KERNELS, BROWSER = "kernels", "browser"
"""Parts that have a step of the test command."""
PLANNING, POLICIES = "planning", "policies"
SLOW = {
    "tests/unit/gpu": "gpu-checks",
    "tests/unit/placement": "placement",
    "tests/unit/plan": PLANNING,
    "tests/unit/policies": POLICIES,
    "tests/unit/router/eldr": "eldr",
    "tests/unit/router": "router",
    "tests/unit/signatures": POLICIES,
    "tests/unit/simulate": PLANNING,
}
"""Folders whose `slow` tests compute for seconds on code of one area: part of that area."""

ALL = "all"
_EVERY = ("pyproject.toml", "toolkit/setup/cpu.lock")
"""What may change any answer: the versions of all packages."""
_END_TO_END = "tests/e2e/"
_COMMANDS = "toolkit/cli/main.py"
_REGISTRY, _POLICIES = "patches/registry.py", "toolkit/policies/__init__.py"
_CHOSEN = {
    "patches/preempt/": ("preempt",),
    "patches/relocate/": ("relocate",),
    "toolkit/policies/published/": ("paper", "artifact"),
}
"""Folder -> the words of a deployment file that have its code run. A policy and a command of the
toolkit are named as their module is."""
_ALWAYS = frozenset({"round_robin", "shortest_queue"})
"""Policies of a deployment that names none."""

MARK = re.compile(r"\bmark\.touched\(\"([\w-]+)\"\)")
_SLOW = re.compile(r"\bmark\.slow\b")
_FIXTURE = re.compile(r"^@pytest\.fixture.*\ndef (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"#.*")


class Checkout:
    """The parts of a checkout as it is now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources = Sources(root, naming=(_COMMANDS,))
        self._sums: Dict[str, str] = {}
        self.tests = self._parts()
        """Part -> the files of its tests."""

    def _parts(self) -> Dict[str, List[str]]:
        found: Dict[str, Set[str]] = {}
        for file in sorted((self._root / "tests").rglob("test_*.py")):
            path = file.relative_to(self._root).as_posix()
            text = self._sources.text(path)
            for part in MARK.findall(text):
                found.setdefault(part, set()).add(path)
            slow = of_slow(path) if _SLOW.search(text) else None
            if slow is not None:
                found.setdefault(slow, set()).add(path)
            if path in kernels.MODULES:
                found.setdefault(KERNELS, set()).add(path)
        return {part: sorted(found[part]) for part in sorted(found)}

    def files(self, part: str) -> List[str]:
        """The files that a part tries, by their paths in the checkout."""
        code: Set[str] = set()
        for real in (False, True):
            tests = [path for path in self.tests[part] if path.startswith(_END_TO_END) is real]
            conftests = self._conftests(tests)
            tests += [path for path, used in conftests.items() if used]
            code |= {*self._sources.reached(tests, self._judge(tests, real)), *conftests}
        found = {*code, *self._sources.data(code), *self._shipped(code)}
        found |= {path for path in _EVERY if (self._root / path).is_file()}
        return sorted(found - {RECORD.as_posix()})

    def _of_tests(self, paths: Sequence[str]) -> Set[str]:
        """Those and what they import of the tests."""
        within = self._sources.reached(
            paths, lambda _, path: How.WHOLE if path.startswith("tests/") else How.NOT
        )
        return {path for path in within if path.startswith("tests/")}

    def _conftests(self, tests: Sequence[str]) -> Dict[str, bool]:
        """The `conftest.py` of the folders that these tests are in, and whether they use what it
        imports: a fixture of it, by its name."""
        found = {}
        for folder in {parent for path in tests for parent in Path(path).parents}:
            path = (folder / "conftest.py").as_posix()
            if (self._root / path).is_file():
                names = _FIXTURE.findall(self._sources.text(path))
                asked = re.compile(r"\b(?:" + "|".join(names) + r")(?:\s*:|[\"'])")
                using = [p for p in self._of_tests(tests) if folder in Path(p).parents]
                texts = [self._sources.text(each) for each in using if each != path]
                found[path] = bool(names) and any(asked.search(text) for text in texts)
        return found

    def _judge(self, tests: Sequence[str], real: bool) -> Judge:
        """How much of a file counts where it is one of many that another one lists, for somebody to
        choose from by a name: that is in the text of these tests, or in a recipe that they name.

        A command of the toolkit is loaded with all the others, and runs where a test says its name.
        Real workers and routers load patches and policies that they do not run, unless their
        deployment says so; tests that run for every change load them, too.
        """
        code = self._of_tests(tests)
        texts = [self._sources.text(path) for path in code]
        said = {word for path in code for word in self._sources.words(path)}
        for path in self._recipes(code):
            texts.append(_COMMENT.sub("", (self._root / path).read_text(encoding="utf-8")))
        words = {*_ALWAYS, *(word for text in texts for word in re.findall(r"\w+", text))}

        def judge(by: str, path: str) -> How:
            if by == _COMMANDS:
                return How.LOADED if _asked_by(path).isdisjoint(said) else How.WHOLE
            asked = _asked_by(path) if real and by in (_REGISTRY, _POLICIES) else frozenset()
            return How.NOT if asked and asked.isdisjoint(words) else How.WHOLE

        return judge

    def _recipes(self, code: Set[str]) -> List[str]:
        """Deployment files that this code names."""
        found = sorted((self._root / "launch").glob("*.yaml"))
        texts = [self._sources.text(path) for path in code]
        named = [each for each in found if any(each.name in text for text in texts)]
        return [each.relative_to(self._root).as_posix() for each in named]

    def _shipped(self, code: Set[str]) -> List[str]:
        """What lies beside the packages and this code reads (`toolkit.resources`)."""
        found = self._recipes(code)
        if any("profiles_dir()" in self._sources.text(path) for path in code):
            found += below(self._root, self._root / "profiles")
        return found

    def digest(self, part: str) -> str:
        """SHA-256 over the names and bytes of a part's files."""
        sums = hashlib.sha256()
        for path in self.files(part):
            if path not in self._sums:
                self._sums[path] = hashlib.sha256((self._root / path).read_bytes()).hexdigest()
            sums.update(f"{path} {self._sums[path]}\n".encode())
        return sums.hexdigest()


def _asked_by(path: str) -> FrozenSet[str]:
    """The words that choose what is in this file; none where nobody has to."""
    for folder, words in _CHOSEN.items():
        if path.startswith(folder):
            return frozenset(words)
    folder, _, name = path.rpartition("/")
    if folder in ("toolkit/cli", "toolkit/policies") and name != "base.py":
        return frozenset({name[: -len(".py")]})
    return frozenset()


def of_slow(path: str) -> Optional[str]:
    """The part of the slow tests in a file; None where they run for every change."""
    found = [part for folder, part in SLOW.items() if path.startswith(folder + "/")]
    return found[0] if found else None


def recorded(root: Path) -> Dict[str, str]:
    """Part -> the digest with which it last passed; nothing where there is no record."""
    try:
        found: Dict[str, str] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def touched(root: Path) -> List[str]:
    """The parts that a change has to run."""
    known = recorded(root)
    return [part for part, value in now(root).items() if known.get(part) != value]


def now(root: Path, parts: Optional[Sequence[str]] = None) -> Dict[str, str]:
    """Part -> the digest of its files as they are."""
    checkout = Checkout(root)
    return {part: checkout.digest(part) for part in (checkout.tests if parts is None else parts)}


def with_tests(root: Path, files: Set[str]) -> List[str]:
    """The parts that have tests in one of these files."""
    return [part for part, tests in Checkout(root).tests.items() if not files.isdisjoint(tests)]


def record(root: Path, passed: Dict[str, str]) -> None:
    """Say that these parts have passed with these digests."""
    there = Checkout(root).tests
    known = {part: value for part, value in recorded(root).items() if part in there}
    known.update(passed)
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    (root / RECORD).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    root = Path(__file__).resolve().parents[2]
    checkout = Checkout(root)
    parser = argparse.ArgumentParser(prog="python -m toolkit.setup.touched", description=__doc__)
    words = [*checkout.tests, ALL]
    parser.add_argument("--record", nargs="+", choices=words, metavar="PART", help=", ".join(words))
    parser.add_argument("--files", choices=[*checkout.tests], metavar="PART", help="list them")
    options = parser.parse_args(arguments)
    if options.files:
        print("\n".join(checkout.files(options.files)))
        return 0
    if options.record:
        record(root, now(root, None if ALL in options.record else options.record))
    changed = touched(root)
    for part in checkout.tests:
        word = "runs, its files have changed" if part in changed else "passed as it is"
        say.line(f"{part}: {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
