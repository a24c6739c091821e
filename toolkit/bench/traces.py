"""Public request traces: Azure CSV, Mooncake JSONL, and plain lengths (Vidur CSV).

Only lengths, times and shared prefixes are in them, in those of our router classes, too (`class`,
in CSV files a column of that name); `synthetic.py` makes the prompts.
"""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from toolkit.bench.errors import BenchError
from toolkit.bounded_files import Unreadable, lines_of, parse_json
from toolkit.contract.request_class import RequestClass

MOONCAKE_BLOCK = 512  # tokens that one entry of hash_ids stands for

HUGE = 10_000_000
"""Tokens. No request is longer."""

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. `hash_ids` name its prompt's blocks of `block` tokens in order.
    `request_class`: None where the trace says none."""

    input_tokens: int
    output_tokens: int
    stamp_s: float | None = None
    hash_ids: tuple[int, ...] = ()
    block: int = MOONCAKE_BLOCK
    request_class: RequestClass | None = None


def load(path: Path, limit: int | None = None) -> list[TraceRow]:
    """Rows of a trace file (.csv, .jsonl, or either with .gz), sorted by time, first `limit`.

    Raises BenchError for an unknown format or a broken line, naming the line.
    """
    rows = _sorted((row for _, row in stream(path)), str(path))
    return rows if limit is None else rows[:limit]


def parse(text: str, name: str = "trace") -> list[TraceRow]:
    """Rows of a trace's text; the format is told from its first line."""
    return _sorted((row for _, row in read(io.StringIO(text), name)), name)


def stream(path: Path) -> Iterator[tuple[int, TraceRow]]:
    """Line number and row of each request in a trace file, as they stand there; in memory is one.

    BenchError: as `load`.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt") if packed else path.open() as lines:
            yield from read(lines_of(lines), str(path))
    except (OSError, EOFError, UnicodeDecodeError, Unreadable) as error:
        why = getattr(error, "strerror", None) or error
        raise BenchError(f"cannot read the trace {path}: {why}") from error


def read(lines: Iterable[str], name: str) -> Iterator[tuple[int, TraceRow]]:
    """Line number and row of each request; rows without input or without output are left out."""
    lines = iter(lines)
    first = next((line for line in lines if line.strip()), "")
    every = chain([first], lines)
    found = _jsonl(every, name) if first.lstrip().startswith("{") else _csv(every, name)
    for number, row in found:
        for tokens in (row.input_tokens, row.output_tokens):
            if not 0 <= tokens <= HUGE:
                raise BenchError(f"{name}:{number}: {tokens} tokens are no length (0 to {HUGE:,})")
        if row.input_tokens and row.output_tokens:
            yield number, row


def _sorted(rows: Iterable[TraceRow], name: str) -> list[TraceRow]:
    kept = sorted(rows, key=lambda row: row.stamp_s or 0.0)
    if not kept:
        raise BenchError(f"{name}: no request with input and output tokens in it")
    return kept


def scale(row: TraceRow, factor: float, max_input: int | None, max_output: int | None) -> TraceRow:
    """Shrink lengths by `factor`, then clip. Blocks shrink with the input, so that prefixes which
    were shared stay shared."""
    lengths = [max(1, round(tokens * factor)) for tokens in (row.input_tokens, row.output_tokens)]
    return replace(
        row,
        input_tokens=min(lengths[0], max_input or lengths[0]),
        output_tokens=min(lengths[1], max_output or lengths[1]),
        block=max(1, round(row.block * factor)),
    )


def _jsonl(lines: Iterable[str], name: str) -> Iterator[tuple[int, TraceRow]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
            row = TraceRow(
                input_tokens=int(entry["input_length"]),
                output_tokens=int(entry["output_length"]),
                stamp_s=float(entry["timestamp"]) / 1000.0,
                hash_ids=tuple(int(value) for value in entry.get("hash_ids", ())),
                block=int(entry.get("block", MOONCAKE_BLOCK)),
                request_class=_class(entry.get("class")),
            )
            if row.block < 1:
                raise ValueError(f"blocks of {row.block} tokens")
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{name}:{number}: not a Mooncake row (timestamp in ms, input_length, "
                f"output_length, hash_ids, block, class): {error!r}"
            ) from error
        yield number, row


def _class(text: str | None) -> RequestClass | None:
    """ValueError: no class."""
    return RequestClass(text) if text else None


def _csv(lines: Iterable[str], name: str) -> Iterator[tuple[int, TraceRow]]:
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    if all(column in columns for column in _AZURE):
        stamp: str | None = _AZURE[0]
        given, made = _AZURE[1:]
    elif all(column in columns for column in _LENGTHS):
        stamp, (given, made) = None, _LENGTHS
    else:
        raise BenchError(
            f"{name}: unknown columns {', '.join(columns) or '(none)'}; known are "
            f"{', '.join(_AZURE)} (Azure), {', '.join(_LENGTHS)} (lengths only), and Mooncake JSONL"
        )
    for row in reader:
        yield reader.line_num, _row(name, reader.line_num, row, given, made, stamp)


def _row(
    name: str, line: int, row: dict[str, str], given: str, made: str, stamp: str | None = None
) -> TraceRow:
    try:
        when = None if stamp is None else datetime.fromisoformat(row[stamp]).timestamp()
        kind = _class(row.get("class"))
        return TraceRow(int(row[given]), int(row[made]), when, request_class=kind)
    except (ValueError, TypeError) as error:
        raise BenchError(f"{name}:{line}: not a trace row: {error}") from error
