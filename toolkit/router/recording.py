"""What traffic was like, written down for `toolkit plan` and `toolkit simulate`.

A line for each request in Mooncake's format: when it came (ms), tokens in and out, and a name for
each block of its prompt, so that prompts that begin alike can be told; its class unless that is
standard. Nothing else of a prompt, and no user: names are keyed by the process, and nobody can look
one up.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING

from toolkit.contract.request_class import RequestClass
from toolkit.router.config import ConfigError
from toolkit.router.request_view import BLOCK_BYTES, anonymous

if TYPE_CHECKING:
    from toolkit.router.request import Single

log = logging.getLogger("toolkit.router")

TAIL = 1 << 16
"""Bytes in which the last line lies."""


@dataclass(slots=True, eq=False)
class Entry:
    """A request that came `at` (ms since 1970). `output_tokens`: None while it runs."""

    at: int
    single: Single
    output_tokens: int | None = None


class Recording:
    """Appends to a file in order of arrival, each line at once.

    So a request waits for those that came before it and still run. What came to nothing (refused,
    aborted before its first token) has no line; who went away has what he got.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError: the file cannot be written."""
        self.path = path
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"record: cannot write {path}: {error.strerror}") from error
        self._begun = time() - monotonic()
        self._last = _last_stamp(path)
        self._entries: deque[Entry] = deque()
        self.written = 0

    def begin(self, single: Single, arrived: float) -> Entry:
        """A request has come, at this monotonic time."""
        self._last = max(self._last, round((self._begun + arrived) * 1000))
        entry = Entry(self._last, single)
        self._entries.append(entry)
        return entry

    def end(self, entry: Entry, output_tokens: int) -> None:
        """It is over."""
        entry.output_tokens = output_tokens
        while self._entries and self._entries[0].output_tokens is not None:
            self._write(self._entries.popleft())

    def close(self) -> None:
        """Write down what is over; those that still run have no line."""
        for entry in self._entries:
            if entry.output_tokens is not None:
                self._write(entry)
        self._entries.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, entry: Entry) -> None:
        if self._file is None or not entry.output_tokens:
            return
        single = entry.single
        tokens = single.prompt_tokens or single.view.prompt_tokens
        row = {
            "timestamp": entry.at,
            "input_length": tokens,
            "output_length": entry.output_tokens,
            "hash_ids": [anonymous(block) for block in single.view.blocks],
            "block": max(1, round(tokens * BLOCK_BYTES / max(single.prompt_bytes, 1))),
        }
        if single.view.request_class is not RequestClass.STANDARD:
            row["class"] = single.view.request_class.value
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            done = os.write(self._file, line)
            if done < len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - done)
                raise OSError(f"{done} of {len(line)} bytes")
        except OSError as error:
            # Serving goes on, and what was recorded stays readable: no part of a line is left.
            log.error("traffic is no longer recorded in %s: %s", self.path, error)
            os.close(self._file)
            self._file = None
            return
        self.written += 1


def _last_stamp(path: str) -> int:
    """Of what a router before this one has recorded: times must not go back, clocks may."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL))
        lines = file.read(TAIL).splitlines()
    try:
        return int(json.loads(lines[-1])["timestamp"]) if lines else 0
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"record: {path} holds something else: name a new file") from error
