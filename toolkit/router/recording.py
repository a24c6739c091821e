"""What traffic was like, written down for `toolkit plan` and `toolkit simulate`.

A line for each request in Mooncake's format: when it came (ms), tokens in and out, and a name for
each block of its prompt, so that prompts that begin alike can be told; its `x-request-id`, and its
class unless that is standard. Nothing else of a prompt, and no user: names of blocks are keyed by
the process, and nobody can look one up.

What is held of a request until its line is written is that line, never its body: some kilobytes.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Protocol

from toolkit.bounded_files import parse_json
from toolkit.contract.request_class import RequestClass
from toolkit.router.line_file import LineFile
from toolkit.router.quiet import Tally
from toolkit.router.request_view import BLOCK_BYTES, anonymous
from toolkit.settings.router.config import ConfigError

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest

log = logging.getLogger("toolkit.router")

TAIL = 1 << 16
"""Bytes in which the last line lies."""


HELD_BYTES = 16 * 2**20
"""Lines that wait for a request that came before them and still runs take so much at most."""


@dataclass(slots=True, eq=False)
class RecordingEntry:
    """What the line of a request needs, which came `at` (ms since 1970): no part of its body.

    `tokens`: of its prompt, as the router guesses them. `blocks`: 256 hashes at most. `line`: once
    it is over, empty where it came to nothing; None while it runs."""

    at: int
    tokens: int
    blocks: tuple[int, ...]
    prompt_bytes: int
    request_class: RequestClass
    request_id: str = ""
    line: bytes | None = None


class RecordsRequests(Protocol):
    """Who is told of requests that are to be recorded."""

    def begin(self, sub_request: SubRequest, arrived: float) -> RecordingEntry:
        """A request has come, at this monotonic time."""
        ...

    def end(self, entry: RecordingEntry, output_tokens: int, prompt_tokens: int = 0) -> None:
        """It is over. `prompt_tokens`: as a prefill worker has counted them, 0 where none has."""
        ...


class Recording:
    """Appends to a file in order of arrival, each line at once.

    So a line waits for the requests that came before its own and still run. When those that wait
    take `HELD_BYTES`, the oldest request that still runs gets no line (`given_up` counts them).
    What came to nothing (refused, aborted before its first token) has no line; who went away has
    what he got.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError: the file cannot be written."""
        self.path = path
        self._file = LineFile(path, "record")
        self._begun = time() - monotonic()
        self._last = _last_stamp(path)
        self._entries: deque[RecordingEntry] = deque()
        self._held = 0
        """Bytes of lines that wait."""
        self.written = 0
        self.given_up = 0
        self._told = Tally(f"requests that run too long to be recorded in {path}")

    def begin(self, sub_request: SubRequest, arrived: float) -> RecordingEntry:
        """A request has come, at this monotonic time."""
        view = sub_request.view
        return self.enter(
            arrived, view.prompt_tokens, view.blocks, sub_request.prompt_bytes,
            view.request_class, sub_request.request_id,
        )  # fmt: skip

    def enter(
        self,
        arrived: float,
        tokens: int,
        blocks: tuple[int, ...],
        prompt_bytes: int,
        request_class: RequestClass,
        request_id: str,
    ) -> RecordingEntry:
        """See `RecordingEntry`; `arrived`: in monotonic time."""
        self._last = max(self._last, round((self._begun + arrived) * 1000))
        entry = RecordingEntry(self._last, tokens, blocks, prompt_bytes, request_class, request_id)
        self._entries.append(entry)
        return entry

    def end(self, entry: RecordingEntry, output_tokens: int, prompt_tokens: int = 0) -> None:
        """It is over. `prompt_tokens`: as a prefill worker has counted them, 0 where none has."""
        if entry.line is not None:
            return  # it ran too long and was given up
        entry.line = _line(entry, output_tokens, prompt_tokens) if output_tokens else b""
        entry.blocks = ()
        self._held += len(entry.line)
        self._write_ended()
        while self._held > HELD_BYTES:
            self._entries[0].line = b""
            self.given_up += 1
            self._told.add()
            self._write_ended()

    def close(self) -> None:
        """Write down what is over; those that still run have no line."""
        for entry in self._entries:
            entry.line = entry.line or b""
        self._write_ended()
        self._file.close()

    def _write_ended(self) -> None:
        """As far as no request that still runs stands before them."""
        while self._entries and (line := self._entries[0].line) is not None:
            self._entries.popleft()
            self._held -= len(line)
            self._write(line)

    def _write(self, line: bytes) -> None:
        if line and self._file.write(line):
            self.written += 1


def _line(entry: RecordingEntry, output_tokens: int, prompt_tokens: int) -> bytes:
    tokens = prompt_tokens or entry.tokens
    row = {
        "timestamp": entry.at,
        "input_length": tokens,
        "output_length": output_tokens,
        "hash_ids": [anonymous(block) for block in entry.blocks],
        "block": max(1, round(tokens * BLOCK_BYTES / max(entry.prompt_bytes, 1))),
    }
    if entry.request_id:
        row["request_id"] = entry.request_id
    if entry.request_class is not RequestClass.STANDARD:
        row["class"] = entry.request_class.value
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _last_stamp(path: str) -> int:
    """Of what a router before this one has recorded: times must not go back, clocks may."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL))
        lines = file.read(TAIL).splitlines()
    try:
        return int(parse_json(lines[-1])["timestamp"]) if lines else 0
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"record: {path} holds something else: name a new file") from error
