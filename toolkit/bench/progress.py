"""The lines that a comparison says while it runs: one a play, under one line of headers."""

from collections.abc import Sequence
from typing import Any

from toolkit.report.terminal import Lines, console

COLUMNS = (
    ("median_ttft_ms", "TTFT, ms", "99999.9", 1),
    ("median_tpot_ms", "TPOT, ms", "9999.9", 1),
    ("median_worker_tpot_ms", "in the worker", "9999.99", 2),
    ("distinct_experts", "experts", "999.9", 1),
)
"""Medians of a play: key, header, the widest cell expected, decimals."""


class ComparisonProgress:
    """`room` None: as wide as the terminal."""

    def __init__(self, arms: Sequence[str], rounds: int, room: int | None = None) -> None:
        self._arms, self._rounds = arms, rounds
        self._lines: Lines | None = None
        self._room = room

    def lines(self, arm: int, number: int, metrics: dict[str, Any]) -> list[str]:
        """A play's line, after the headers if it is the first."""
        first = self._lines is None
        table = self._lines or self._table()
        self._lines = table
        cells = [self._name(arm, number)]
        for key, _, _, digits in COLUMNS:
            value = metrics.get(key)
            cells.append("-" if value is None else f"{value:.{digits}f}")
        row = table.row(cells)
        return [table.head, row] if first else [row]

    def _table(self) -> Lines:
        room = console().width if self._room is None else self._room
        names = [self._name(arm, self._rounds - 1) for arm in range(len(self._arms))]
        headers = ["round, policy", *(header for _, header, _, _ in COLUMNS)]
        widest = [max(names, key=len), *(cell for _, _, cell, _ in COLUMNS)]
        return Lines(headers, widest, room)

    def _name(self, arm: int, number: int) -> str:
        width = len(str(self._rounds))
        return f"{number + 1:>{width}}/{self._rounds} {self._arms[arm]}"
