"""Prompt and output tokens of requests from a plain file."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ToolkitError


class LengthsError(ToolkitError, ValueError):
    """A file of lengths that cannot be read; the message names the line."""


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(prompt, output tokens) of each line that is not empty and no comment (`#`), the two numbers
    apart by a comma or spaces. LengthsError: a line that is none, or no line at all."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LengthsError(f"cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise LengthsError(
                f"{path}:{number}: {line.strip()!r} is not PROMPT OUTPUT, two numbers of tokens"
            )
        found.append((int(words[0]), int(words[1])))
    if not found:
        raise LengthsError(f"{path} holds no lengths: a line each, PROMPT OUTPUT in tokens")
    return found
