"""Figures in the text of pages, each drawn from a record in `results/`.

A figure is followed by a comment that says where it comes from:

    TTFT is 0.77 (0.74 to 0.80)<!-- first_token: ttft_ratio --> times ...

The comment names a benchmark, a piece of the record's command in brackets (the last record whose
command has it is taken), and the keys of the figure with " . " between them. A figure keeps the
digits behind the point that it has. The bounds of an interval are `KEY_low` and `KEY_high`, or
`low` and `high` of the key, or the second and third of a list there. After the key, ` * 1000` and
the like say another unit, ` inverse` one divided by it, and ` gain` the percent above 1 of a ratio.

`python -m docs.figures` writes all figures anew. A test says which differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from docs import reference

PAGES = reference.ROOT / "docs" / "pages"
SEPARATOR = " . "
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:\*\*)?(?: [a-zµ%/]{1,8})?(?:\*\*)?"
"""What may stand between a value and its interval."""
INTERVAL = re.compile(
    rf"(?<![\w.,])({NUMBER}){UNIT} \(({NUMBER}) to ({NUMBER})\)".replace(" ", r"\s+")
)
"""A value with the bounds of its interval, also over the end of a line."""
MARK = re.compile(
    rf"(?P<value>{NUMBER})(?:(?P<unit>{UNIT}) \((?P<low>{NUMBER}) to (?P<high>{NUMBER})\))?"
    r"(?P<after>[ %*a-zµ]{0,6})"
    r"<!-- (?P<benchmark>[\w/]+)(?:\[(?P<words>[^\]]*)\])?: "
    r"(?P<key>[^>]+?)(?P<scale> (?:[*/] [\d.]+|inverse|gain))? -->"
)
"""A figure, a few letters of a unit at most, and where it comes from."""


class Where(NamedTuple):
    """Where a figure comes from. `words`: a piece of the record's command; `key`: with `SEPARATOR`;
    `inverse`: the page has one divided by the figure; `gain`: by how many percent the figure is
    above 1."""

    benchmark: str
    words: str
    key: str
    scale: float = 1.0
    inverse: bool = False
    gain: bool = False

    def value(self, bound: str = "") -> float:
        """The figure, or a bound of its interval (`low`, `high`).

        Raises:
            KeyError: there is no such record, or it has no such figure.
        """
        if self.inverse and bound:
            bound = "high" if bound == "low" else "low"
        *path, last = self.key.split(SEPARATOR)
        found: Any = newest(self.benchmark, self.words)
        for part in path:
            found = self._inside(found, part)
        here = self._inside(found, last) if last in found else None
        if isinstance(here, list):
            found = here[("", "low", "high").index(bound)]
        elif isinstance(here, dict):
            found = self._inside(here, bound or "value")
        else:
            found = self._inside(found, f"{last}_{bound}" if bound else last)
        number = float(found)
        if self.gain:
            return 100 * (number - 1)
        return self.scale / number if self.inverse else self.scale * number

    def _inside(self, found: Any, part: str) -> Any:
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            return found[int(part)]
        if isinstance(found, dict) and part in found:
            return found[part]
        raise KeyError(f"{self.benchmark}[{self.words}] has no {part!r} of {self.key!r}")


class Stale(NamedTuple):
    """A figure that differs from its record, or that has none."""

    page: Path
    line: int
    said: str
    record: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {self.said}, but the record says {self.record}"


@cache
def _records() -> list[dict[str, Any]]:
    gpu = [
        {"benchmark": f"gpu/{file.stem}", "command": "", **json.loads(file.read_text())}
        for file in sorted((reference.ROOT / "results" / "gpu").glob("*.json"))
    ]
    return [each for each in (*reference.records(), *gpu) if each.get("figures")]


def newest(benchmark: str, words: str = "") -> dict[str, Any]:
    """The figures of the last record of `benchmark` whose command has these words in one piece.
    KeyError: there is none, or nobody knows of which commit it is."""
    for each in reversed(_records()):
        if each["benchmark"] == benchmark and words in str(each["command"]):
            if not each.get("commit"):
                raise KeyError(f"the record of {benchmark}[{words}] names no commit")
            figures: dict[str, Any] = each["figures"]
            return figures
    raise KeyError(f"results/ has no record of {benchmark} with {words!r}")


def pages() -> Iterator[Path]:
    """Every page whose text may hold figures. (The README's are in a table that `docs.gains` makes,
    and those of design records in tables that name the record in a column.)"""
    yield from sorted(PAGES.glob("*.md"))


def fresh(text: str) -> str:
    """`text` with every marked figure as its record has it. KeyError: as `newest`."""
    return MARK.sub(_figure, text)


def _figure(mark: re.Match[str]) -> str:
    where = place(mark)
    written = like(where.value(), mark["value"])
    if mark["low"]:
        low, high = (where.value(each) for each in ("low", "high"))
        written += mark["unit"]
        written += f" ({like(low, mark['low'])} to {like(high, mark['high'])})"
    return written + mark[0][mark.start("after") - mark.start() :]


def place(mark: re.Match[str]) -> Where:
    """What a match of `MARK` names."""
    scale, change = 1.0, (mark["scale"] or "").split()
    if len(change) == 2:
        number = float(change[1])
        scale = number if change[0] == "*" else 1 / number
    word = change[0] if len(change) == 1 else ""
    named = mark["benchmark"], mark["words"] or "", mark["key"]
    return Where(*named, scale, word == "inverse", word == "gain")


def like(value: float, written: str) -> str:
    """`value` with as many digits behind the point as `written` has, and its commas."""
    digits = len(written.partition(".")[2])
    comma = "," if "," in written else ""
    return f"{value:{comma}.{digits}f}"


def stale(page: Path) -> list[Stale]:
    """The marked figures of a page that are not its records'."""
    found = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for mark in MARK.finditer(line):
            try:
                now = _figure(mark)
            except KeyError as error:
                found.append(Stale(page, number, mark[0], str(error.args[0])))
                continue
            if now != mark[0]:
                found.append(Stale(page, number, mark[0], now))
    return found


def unmarked(page: Path) -> list[str]:
    """Figures with an interval that say not where they come from."""
    text = page.read_text()
    marked = [mark.span() for mark in MARK.finditer(text)]
    return [
        f"{page.name}:{text.count(chr(10), 0, each.start()) + 1}: {each[0]}"
        for each in INTERVAL.finditer(text)
        if not any(begin <= each.start() < end for begin, end in marked)
    ]


if __name__ == "__main__":
    for page in pages():
        text = page.read_text()
        now = fresh(text)
        if now != text:
            page.write_text(now)
            print(f"written: {page}")
