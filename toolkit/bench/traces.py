"""Public request traces: Azure CSV, Mooncake JSONL, and plain lengths (Vidur CSV).

Only lengths, times and shared prefixes are in them; `synthetic.py` makes the prompts.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from toolkit.bench.errors import BenchError

MOONCAKE_BLOCK = 512  # tokens that one entry of hash_ids stands for

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. `hash_ids` name its prompt's blocks of `block` tokens in order."""

    input_tokens: int
    output_tokens: int
    stamp_s: float | None = None
    hash_ids: tuple[int, ...] = ()
    block: int = MOONCAKE_BLOCK


def load(path: Path, limit: int | None = None) -> list[TraceRow]:
    """Rows of a trace file (.csv, .jsonl, or either with .gz), sorted by time, first `limit`.

    Raises BenchError for an unknown format or a broken line, naming the line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read the trace {path}: {error.strerror}") from error
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    rows = parse(raw.decode("utf-8"), str(path))
    return rows if limit is None else rows[:limit]


def parse(text: str, name: str = "trace") -> list[TraceRow]:
    """Rows of a trace's text; the format is told from its first line."""
    first = text.lstrip().split("\n", 1)[0]
    rows = _jsonl(text, name) if first.startswith("{") else _csv(text, name)
    kept = [row for row in rows if row.input_tokens > 0 and row.output_tokens > 0]
    if not kept:
        raise BenchError(f"{name}: no request with input and output tokens in it")
    return sorted(kept, key=lambda row: row.stamp_s or 0.0)


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


def _jsonl(text: str, name: str) -> list[TraceRow]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            row = TraceRow(
                input_tokens=int(entry["input_length"]),
                output_tokens=int(entry["output_length"]),
                stamp_s=float(entry["timestamp"]) / 1000.0,
                hash_ids=tuple(int(value) for value in entry.get("hash_ids", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{name}:{number}: not a Mooncake row (timestamp in ms, input_length, "
                f"output_length, hash_ids): {error!r}"
            ) from error
        rows.append(row)
    return rows


def _csv(text: str, name: str) -> list[TraceRow]:
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or []
    if all(column in columns for column in _AZURE):
        return [_row(name, reader.line_num, row, *_AZURE[1:], stamp=_AZURE[0]) for row in reader]
    if all(column in columns for column in _LENGTHS):
        return [_row(name, reader.line_num, row, *_LENGTHS) for row in reader]
    raise BenchError(
        f"{name}: unknown columns {', '.join(columns) or '(none)'}; known are {', '.join(_AZURE)} "
        f"(Azure), {', '.join(_LENGTHS)} (lengths only), and Mooncake JSONL"
    )


def _row(
    name: str, line: int, row: dict[str, str], given: str, made: str, stamp: str | None = None
) -> TraceRow:
    try:
        when = None if stamp is None else datetime.fromisoformat(row[stamp]).timestamp()
        return TraceRow(int(row[given]), int(row[made]), when)
    except (ValueError, TypeError) as error:
        raise BenchError(f"{name}:{line}: not a trace row: {error}") from error
