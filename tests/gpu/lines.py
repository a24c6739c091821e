"""Every line of ours that only a GPU runs, or runs otherwise than a CPU, and which step reaches it.

The table is `lines.toml`: `file`, a piece of its `text`, what it `does`, and the `step`s that reach
it. A test holds it against the code: an entry whose text is gone fails, and so does a line that
looks as if it belonged here and is in no entry.
"""

import io
import re
import tokenize
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.plan import STEPS

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("lines.toml")

TENSORS = re.compile(
    r"torch\.cuda|pin_memory|non_blocking|\.cuda\(|\bis_cuda\b|record_stream|cuda\.Stream|"
    r"get_device_module|\.cpu\(\)|\bdevice=|\.device\b|\.to\(|\bon_cpu\b|\bcapturing\("
)
"""In patches/, that run inside a worker: streams, copies, device tensors, branches by device."""
FLAGS = re.compile(
    r"torch\.cuda|pin_memory|non_blocking|\.cuda\(|\bis_cuda\b|record_stream|cuda\.Stream|"
    r"cuda-graph|cuda_graph|CUDA_|[!=]= \"cuda\"|\"cuda\":"
)
"""In toolkit/, that never touches a tensor: flags, variables and branches by device."""
CPU_ONLY = ("patches/cpu/", "patches/cpu_stubs/")
"""Not loaded on a GPU."""


@dataclass(frozen=True)
class Line:
    """`step`: names of steps, or `launch`: every step that starts workers reaches it."""

    file: str
    text: str
    does: str
    step: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """A line of code that looks as if it belonged to the table."""

    file: str
    number: int
    text: str


def table() -> list[Line]:
    """ValueError: an entry lacks a key, or names a step that there is not."""
    names = {step.name for step in STEPS} | {"launch"}
    found = []
    for entry in tomllib.loads(TABLE.read_text())["line"]:
        if set(entry) != {"file", "text", "does", "step"} or not set(entry["step"]) <= names:
            raise ValueError(f"{TABLE.name}: {entry} lacks a key, has one more, or names no step")
        found.append(Line(entry["file"], entry["text"], entry["does"], tuple(entry["step"])))
    return found


def hits(root: Path = ROOT) -> list[Hit]:
    """Code lines of patches/ and toolkit/ that a pattern finds; no comments, no docstrings."""
    found = []
    for folder, pattern in (("patches", TENSORS), ("toolkit", FLAGS)):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(CPU_ONLY):
                continue
            source = path.read_text()
            for number, text in code_lines(source) if pattern.search(source) else ():
                if pattern.search(text):
                    found.append(Hit(name, number, text.strip()))
    return found


def code_lines(source: str) -> list[tuple[int, str]]:
    """(number, line) without comments and without strings that are statements of their own."""
    lines = source.splitlines()
    blanked = dict(enumerate(lines, 1))
    fresh = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            blanked[row] = blanked[row][:column]
        elif token.type == tokenize.STRING and fresh:
            for row in range(token.start[0], token.end[0] + 1):
                blanked[row] = ""
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            fresh = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
            fresh = False
    return [(number, line) for number, line in blanked.items() if line.strip()]


def gone(entries: list[Line], root: Path = ROOT) -> list[Line]:
    """Entries whose text is not in their file any more."""
    texts: dict[str, str] = {}
    for entry in entries:
        path = root / entry.file
        texts.setdefault(entry.file, path.read_text() if path.exists() else "")
    return [entry for entry in entries if entry.text not in texts[entry.file]]


def unlisted(entries: list[Line], found: list[Hit]) -> list[Hit]:
    """Hits that no entry of their file covers."""
    return [
        hit
        for hit in found
        if not any(entry.file == hit.file and entry.text in hit.text for entry in entries)
    ]


def as_text(entries: list[Line]) -> list[str]:
    """Lines for a person: by file, each with the steps that reach it."""
    found = []
    for file in dict.fromkeys(entry.file for entry in entries):
        found.append(file)
        for entry in entries:
            if entry.file == file:
                reached = ", ".join(entry.step) or "NO STEP"
                found.append(f"  [{reached}] {entry.text}")
                found.append(f"      {entry.does}")
    return found
