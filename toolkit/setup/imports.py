"""Which files of a checkout a test runs: what it imports, directly or through others.

Found in the text, without running anything, since the answer is wanted before every run of the
tests. A statement counts wherever it stands (a test's program in a string, too), but not under
`if TYPE_CHECKING:`. `tests/unit/setup/test_imports.py` compares that with what Python's own parser
finds, and with what processes have imported.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Callable, Dict, FrozenSet, Iterable, List, Sequence, Set, Tuple

PACKAGES = ("toolkit", "patches", "tests", "docs")

_NAME = r"(?:" + "|".join(PACKAGES) + r")\b[\w.]*"
_FROM = re.compile(r"\bfrom\s+(" + _NAME + r")\s+import\s+(\([^)]*\)|[^\n;\"'\\]*)")
_IMPORT = re.compile(r"\bimport[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)")
_NOT_INDENTED = re.compile(r"^(?:from|import)\b(?:[^\n(]*\([^)]*\)|[^\n]*)", re.MULTILINE)
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")
_QUOTED = re.compile(r"[\"'](" + _NAME + r")")
_PROCESS = re.compile(r"\"-m\",\s+\"(" + _NAME + r")\"")
_STARTS = re.compile(r"^STARTS = (\(.*?\))", re.MULTILINE | re.DOTALL)
"""In a module of the tests: what processes load that it starts, where it does not name that."""
_WORD = re.compile(r"[\"']([\w.-]+)[\"']")


class How(Enum):
    """What of a module may run."""

    WHOLE = "all of it"
    LOADED = "what runs when it is imported"
    NOT = "nothing"


Found = FrozenSet[Tuple[str, How]]
Judge = Callable[[str, str], How]
"""Of a file and another one that it uses as a whole: how much of that one counts."""


class Sources:
    """The Python files of a checkout as they are now, by their paths in it; each is read once.

    `naming`: files of the product whose strings name modules that they import.
    """

    def __init__(self, root: Path, naming: Sequence[str] = ()) -> None:
        self.root = root
        self._naming = naming
        self._texts: Dict[str, str] = {}
        self._words: Dict[str, FrozenSet[str]] = {}
        self._modules: Dict[str, Found] = {}
        self._used: Dict[Tuple[str, How], Found] = {}

    def text(self, path: str) -> str:
        """Without what only a type checker reads."""
        if path not in self._texts:
            text = (self.root / path).read_text(encoding="utf-8")
            self._texts[path] = _FOR_TYPES.sub("", text)
        return self._texts[path]

    def words(self, path: str) -> FrozenSet[str]:
        """The strings in it that are one word."""
        if path not in self._words:
            self._words[path] = frozenset(_WORD.findall(self.text(path)))
        return self._words[path]

    def reached(self, paths: Iterable[str], judge: Judge) -> Set[str]:
        """The files that these files run, themselves and their packages included."""
        todo: List[Tuple[str, How]] = []
        for path in paths:
            todo += self._module(path[: -len(".py")].replace("/", "."))
        seen: Set[Tuple[str, How]] = set()
        while todo:
            path, how = todo.pop()
            if (path, how) in seen or (path, How.WHOLE) in seen:
                continue
            seen.add((path, how))
            for other, most in self.used(path, how):
                judged = judge(path, other)
                if judged is not How.NOT:
                    todo.append((other, judged if most is how is How.WHOLE else How.LOADED))
        return {path for path, _ in seen}

    def used(self, path: str, how: How) -> Found:
        """What a file imports, and how much of that may run: of the packages that a module is in,
        only what runs when they are imported."""
        if (path, how) not in self._used:
            self._used[path, how] = frozenset(self._uses(path, how))
        return self._used[path, how]

    def _uses(self, path: str, how: How) -> Set[Tuple[str, How]]:
        text = self.text(path)
        if how is How.LOADED:
            return self._imported("\n".join(_NOT_INDENTED.findall(text)))
        found = self._imported(text)
        tests = path.startswith("tests/")
        if tests or path in self._naming:
            for name in _QUOTED.findall(text):
                found |= self._module(name.rstrip("."))
                if name.endswith("."):  # f"tests.gpu.steps.{step}": any of them
                    found |= self._inside(name)
        for name in _PROCESS.findall(text):
            # What starts another part of the product (the launcher a worker) does not count: tests
            # that have it do so say it.
            if tests or name.split(".")[:2] == path.split("/")[:2]:
                found |= self._program(name)
        for names in _STARTS.findall(text) if tests else ():
            for name in _WORD.findall(names):
                found |= self._program(name)
        return found

    def _imported(self, text: str) -> Set[Tuple[str, How]]:
        found: Set[Tuple[str, How]] = set()
        for module, names in _FROM.findall(text):
            for name in _COMMENT.sub("", names).strip("() \n").split(","):
                if name.strip():
                    found |= self._module(f"{module}.{name.split()[0]}")
        for names in _IMPORT.findall(text):
            for name in names.split(","):
                found |= self._module(name.strip())
        return found

    def _program(self, name: str) -> Found:
        """What `python -m` runs."""
        return self._module(name) | self._module(f"{name}.__main__")

    def _inside(self, package: str) -> Set[Tuple[str, How]]:
        files = (self.root / package.replace(".", "/")).glob("*.py")
        return {(file.relative_to(self.root).as_posix(), How.WHOLE) for file in files}

    def _module(self, name: str) -> Found:
        """The file of a module, or of the module whose attribute this is, and its packages."""
        if name not in self._modules:
            self._modules[name] = frozenset(self._found(name.split(".")))
        return self._modules[name]

    def _found(self, parts: List[str]) -> List[Tuple[str, How]]:
        found: List[Tuple[str, How]] = []
        if parts[0] not in PACKAGES:
            return found
        for end in range(1, len(parts) + 1):
            base = "/".join(parts[:end])
            names = (f"{base}/__init__.py", f"{base}.py")
            there = [name for name in names if (self.root / name).is_file()]
            if not there and not (self.root / base).is_dir():
                break
            found += [(name, How.LOADED) for name in there[:1]]
        return [*found[:-1], *((path, How.WHOLE) for path, _ in found[-1:])]

    def data(self, paths: Iterable[str]) -> Set[str]:
        """Files next to these modules that they name: texts, weights, programs run by their path.
        A folder that they name counts as a whole, unless it is a package."""
        beside: Dict[Path, Set[str]] = {}
        found: Set[str] = set()
        for path in paths:
            folder = (self.root / path).parent
            if folder not in beside:
                beside[folder] = {each.name for each in folder.iterdir()}
            for name in beside[folder] & self.words(path):
                each = folder / name
                if each.is_file():
                    found.add(each.relative_to(self.root).as_posix())
                elif not (each / "__init__.py").exists():
                    found |= set(below(self.root, each))
        return found


def below(root: Path, folder: Path) -> List[str]:
    """All files below a folder, but for what Python has compiled."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each.relative_to(root).as_posix() for each in files if "__pycache__" not in each.parts]
