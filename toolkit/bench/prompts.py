"""The user's own prompts (`--prompts FILE`): lines of text, JSON lines, or a JSON array.

A row may be what SGLang's `bench_serving` reads (ShareGPT's `conversations`, chat `messages`), a
line of an OpenAI batch file, or just a `prompt` or `text`. That tool leaves out rows it does not
understand; here each is an error that names its line, since a run without half of its prompts
says nothing about them. Any row may say its domain, language, user, class and output tokens.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.bench.errors import BenchError
from toolkit.bounded_files import Unreadable, gunzip, parse_json, read_bytes

REPAIR = (
    'a line is an object with "prompt", "text", "messages" (OpenAI chat or batch file) or '
    '"conversations" (ShareGPT)'
)
_LIMITS = ("output_tokens", "max_tokens", "max_completion_tokens", "max_new_tokens")
_FACTS = ("domain", "language", "user", "class")
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
"""ShareGPT's names of who speaks."""


@dataclass(frozen=True, slots=True)
class UserPrompt:
    """One prompt. `text` is what a completion is asked of; of a chat, all that is said in it.

    `messages` are (role, content), empty for plain text. `answer` is the recorded one, whose length
    is asked for where `max_tokens` is None and the command does not say; "" where there is none.
    `said` is a whole chat with all its answers, for `toolkit.bench.conversations`.
    """

    text: str
    messages: tuple[tuple[str, str], ...] = ()
    max_tokens: int | None = None
    answer: str = ""
    place: str = ""
    """FILE:LINE, for errors."""
    domain: str = ""
    language: str = ""
    user: str = ""
    kind: str = ""
    """Its class, as interactive or batch."""
    said: tuple[tuple[str, str], ...] = ()

    @property
    def is_chat(self) -> bool:
        """More than one user's message: only the chat endpoint can send it."""
        return len(self.messages) > 1


def load(path: Path, limit: int | None = None) -> list[UserPrompt]:
    """The prompts of a file in its order, the first `limit`.

    BenchError: it cannot be read, is empty or no UTF-8, or has a line that is no prompt.
    """
    text = _text(path)
    if not text.strip():
        raise BenchError(f"{path} is empty: put one prompt a line in it, or JSON lines; {REPAIR}")
    found = []
    for prompt in _rows(path, text):
        found.append(prompt)
        if len(found) == limit:
            break
    if not found:
        raise BenchError(f"{path} has no prompt: its array is empty; {REPAIR}")
    return found


def _text(path: Path) -> str:
    try:
        data = read_bytes(path)
        if data.startswith(b"\x1f\x8b"):
            data = gunzip(data)
    except (OSError, EOFError, Unreadable) as error:
        why = getattr(error, "strerror", None) or error
        raise BenchError(f"cannot read the prompts {path}: {why}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BenchError(
            f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}): save it as UTF-8, as with "
            f"iconv -f WINDOWS-1252 -t UTF-8 {path.name}"
        ) from error


def _rows(path: Path, text: str) -> Iterator[UserPrompt]:
    """The format is told from the name where it says (.txt, .jsonl, .json), else from the first
    character."""
    suffixes = path.suffixes[-2:-1] if path.suffix == ".gz" else path.suffixes[-1:]
    suffix = suffixes[0].lower() if suffixes else ""
    first = text.lstrip()[0]
    if suffix != ".txt" and (suffix == ".json" or (first == "[" and suffix != ".jsonl")):
        yield from _array(path, text)
        return
    as_json = suffix == ".jsonl" or (suffix != ".txt" and first == "{")
    # Only \n ends a line: a prompt may hold U+2028 or a form feed, at which splitlines() cuts.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        if not as_json:
            yield UserPrompt(line.strip(), place=place)
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise BenchError(
                f"{place}: not JSON ({error}): {REPAIR}; a file of plain text prompts is named .txt"
            ) from error
        yield parse(row, place)


def _array(path: Path, text: str) -> Iterator[UserPrompt]:
    try:
        rows = parse_json(text)
    except ValueError as error:
        place = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else f"{path}"
        raise BenchError(
            f"{place}: not JSON ({getattr(error, 'msg', error)}): one object a line is named "
            ".jsonl, plain text prompts .txt"
        ) from error
    if not isinstance(rows, list):
        rows = [rows]
    for number, row in enumerate(rows, 1):
        yield parse(row, f"{path}, entry {number}")


def parse(row: Any, place: str) -> UserPrompt:
    """One row. BenchError: it is none of the known ones."""
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise BenchError(f"{place}: {_kind(row)} is no prompt: {REPAIR}")
    body = row.get("body") if "messages" not in row and "prompt" not in row else None
    if isinstance(body, Mapping):  # an OpenAI batch file
        row = {**{key: row[key] for key in _FACTS if key in row}, **body}
    domain, language, user, kind = (_fact(row, key, place) for key in _FACTS)
    found = _prompt(row, place)
    return replace(found, domain=domain, language=language, user=user, kind=kind)


def _prompt(row: Mapping[str, Any], place: str) -> UserPrompt:
    limit = _limit(row, place)
    said = next((row[key] for key in ("conversations", "conversation") if key in row), None)
    if said is not None:
        return _shared(said, limit, place)
    if "messages" in row:
        return _chat(row["messages"], limit, place)
    for key in ("prompt", "text"):
        if key in row:
            text = row[key]
            if not isinstance(text, str) or not text.strip():
                raise BenchError(f'{place}: "{key}" is {_kind(text)}: it must be a text')
            return UserPrompt(text, max_tokens=limit, place=place)
    keys = ", ".join(map(str, row)) or "nothing"
    raise BenchError(f"{place}: no prompt in it (it has {keys}): {REPAIR}")


def _fact(row: Mapping[str, Any], key: str, place: str) -> str:
    """A name, or a number that stands for one; "" where the row has none."""
    value = row.get(key)
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    # A user travels in a header, a domain or class may.
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise BenchError(f'{place}: "{key}" is {_kind(value)}: it must be a name, or left out')
    return value.strip()


def _limit(row: Mapping[str, Any], place: str) -> int | None:
    sampling = row.get("sampling_params")
    both = {**sampling, **row} if isinstance(sampling, Mapping) else row
    for key in _LIMITS:
        value = both.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BenchError(f'{place}: "{key}" is {value!r}: it must be a number from 1 on')
        return value
    return None


def _shared(turns: Any, limit: int | None, place: str) -> UserPrompt:
    """ShareGPT: the first turn is the prompt, the second the answer, as `bench_serving` has it."""
    said = _turns(turns, place, "conversations")
    first = 2 if said[0][0] == "system" and len(said) > 1 else 1
    asked = said[:first]
    answer = said[first][1] if len(said) > first else ""
    messages = tuple((role if role == "system" else "user", text) for role, text in asked)
    return UserPrompt(_joined(messages), messages, limit, answer, place, said=tuple(said))


def _chat(turns: Any, limit: int | None, place: str) -> UserPrompt:
    """OpenAI's messages; an assistant's at the end (fine-tuning files) is the recorded answer."""
    said = _turns(turns, place, "messages")
    answer, whole = "", tuple(said)
    if said[-1][0] == "assistant":
        answer = said.pop()[1]
        if not said:
            raise BenchError(f'{place}: "messages" has an answer alone, and nobody asks')
    return UserPrompt(_joined(said), tuple(said), limit, answer, place, said=whole)


def _turns(turns: Any, place: str, key: str) -> list[tuple[str, str]]:
    if not isinstance(turns, list) or not turns:
        raise BenchError(f'{place}: "{key}" is {_kind(turns)}: it must be a list of messages')
    return [_turn(turn, number, place) for number, turn in enumerate(turns, 1)]


def _turn(turn: Any, number: int, place: str) -> tuple[str, str]:
    where = f"{place}: message {number}"
    if not isinstance(turn, Mapping):
        raise BenchError(f'{where} is {_kind(turn)}: it needs "role" and "content"')
    role = turn.get("role", turn.get("from", "user"))
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise BenchError(f"{where} has a part that is no text: pictures and sound are not sent")
        content = "\n".join(str(part) for part in parts)
    if not isinstance(content, str) or not content.strip() or not isinstance(role, str):
        raise BenchError(f'{where} has no text: it needs "role" and "content" ("from", "value")')
    return _ROLES.get(role, role), content


def _joined(messages: Any) -> str:
    return "\n\n".join(text for _, text in messages)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    if value == [] or (isinstance(value, str) and not value.strip()):
        return "empty"
    return names.get(type(value), "a number" if not isinstance(value, bool) else "true or false")
