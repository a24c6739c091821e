"""Prompt and output tokens of requests from a plain file, or of those that run now."""

from collections.abc import Iterable
from pathlib import Path

from toolkit.bounded_files import parse_json, read_text
from toolkit.errors import ToolkitError

LEAST_LIVE = 20
"""Fewer requests are no distribution of lengths."""


class LengthsError(ToolkitError, ValueError):
    """Lengths that cannot be had; of a file the message names the line."""


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(prompt, output tokens) of each line that is not empty and no comment (`#`), the two numbers
    apart by a comma or spaces. LengthsError: a line that is none, or no line at all."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
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


def ask_live(routers: Iterable[str], key: str | None = None) -> list[tuple[int, int]]:
    """(prompt, KV tokens) of every request of these routers that decodes now. LengthsError: one
    does not say, or there are fewer than LEAST_LIVE in all."""
    found = [each for router in routers for each in _lengths_at(router, key)]
    if len(found) < LEAST_LIVE:
        raise LengthsError(
            f"only {len(found)} requests decode now: stages are planned for {LEAST_LIVE} and more"
        )
    return found


def _lengths_at(router: str, key: str | None) -> list[tuple[int, int]]:
    from toolkit.launch.readiness import get

    url = f"{router.rstrip('/')}/workers?lengths=1"
    status, body = get(url, key=key)
    if status != 200:
        raise LengthsError(f"{url} answers {status or 'nothing'}: is this our router, and its key?")
    try:
        return [(int(prompt), int(length)) for prompt, length, *_ in parse_json(body)["lengths"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LengthsError(
            f"{url} says no lengths: it is not our router, or an older one"
        ) from error
