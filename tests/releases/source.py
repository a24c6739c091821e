"""SGLang's source as text: what a release has and another one has not, without importing either."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Source:
    """An unpacked release; `root` holds the folder `sglang`."""

    root: Path

    def words(self) -> frozenset[str]:
        """Every identifier that stands anywhere in `sglang.srt`, comments included."""
        return _words(self.root)

    def text(self, symbol: str) -> str | None:
        """The source of a dotted name; None where there is no such module, class or function."""
        parts = symbol.split(".")
        for count in range(len(parts), 0, -1):
            base = self.root.joinpath(*parts[:count])
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    return _inside(*_parsed(file, file.stat().st_mtime_ns), parts[count:])
        return None

    def flags(self) -> dict[str, str]:
        """The declaration of every flag's field: type, default and help, as one line."""
        srt = self.root / "sglang" / "srt"
        found = {}
        for file in (*sorted((srt / "arg_groups").rglob("*.py")), srt / "server_args.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    for line in node.body:
                        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                            found[line.target.id] = ast.unparse(line)
        return found


@cache
def _words(root: Path) -> frozenset[str]:
    found: set[str] = set()
    for file in (root / "sglang" / "srt").rglob("*.py"):
        found.update(_WORD.findall(file.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)


@cache
def _parsed(file: Path, changed_ns: int) -> tuple[str, ast.Module]:
    text = file.read_text(encoding="utf-8")
    return text, ast.parse(text)


def _inside(text: str, node: ast.AST, names: list[str]) -> str | None:
    """Of nested names in a module; the whole text for none."""
    for name in names:
        body: list[ast.stmt] = getattr(node, "body", [])
        found = next((each for each in _statements(body) if name in _defines(each)), None)
        if found is None:
            return None
        node = found
    return _segment(_lines(text), node) if names else text


@cache
def _lines(text: str) -> list[str]:
    return text.split("\n")


def _segment(lines: list[str], node: Any) -> str:
    """As `ast.get_source_segment`, which divides a long module into its lines each time."""
    first, last = int(node.lineno) - 1, int(node.end_lineno) - 1
    begin, end = node.col_offset, node.end_col_offset
    if first == last:
        return lines[first].encode()[begin:end].decode()
    head, tail = lines[first].encode()[begin:].decode(), lines[last].encode()[:end].decode()
    return "\n".join([head, *lines[first + 1 : last], tail])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a body, those under `if` and `try` included."""
    for each in body:
        yield each
        for inner in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(each, ast.If | ast.Try):
                yield from _statements(getattr(each, inner, []))


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = {alias.asname or alias.name for alias in node.names}
    return names
