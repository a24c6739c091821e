"""What a client already has of a stream, and how a replay is cut down to the rest.

A resumed stream starts again from the first output token, chunked differently. Per field of the
choice, the characters (or list entries) that went out before are dropped from the replay.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from toolkit.router.grammars import grammar_of
from toolkit.router.progress import Progress
from toolkit.router.request import Endpoint

MISSHAPEN = (AttributeError, LookupError, TypeError, ValueError)
"""Raised by an event that is no stream's: it went to the client as it is, and counts nothing."""


class Sent:
    """What has gone to the client, kept as raw bytes and counted only when it is needed.

    Counting costs a JSON parse per event, which the hot path must not pay: raw events are packed
    when they pass `FOLD_BYTES` (they shrink some thirtyfold), and parsed when a resume asks.
    """

    FOLD_BYTES = 64 * 1024
    HEADER = 48
    """Bytes that one more piece takes beside what is in it."""

    def __init__(self, endpoint: Endpoint, incremental: bool = False) -> None:
        self._generate = endpoint == "generate"
        self._incremental = incremental
        self._cumulative = self._generate and not incremental
        self._progress = grammar_of(endpoint).progress()
        self._packed: list[bytes] = []
        self._raw: list[bytes] = []
        self._bytes = 0
        self._packed_bytes = 0
        self.events = False
        self.kept = 0
        """Bytes that are held now."""
        self.forgotten = False
        """Nothing is kept any more: what the client has cannot be told."""

    def add(self, events: bytes) -> None:
        """Whole SSE events, as they were sent."""
        self.events = True
        if self.forgotten:
            return
        if self._cumulative:
            self._raw = [events]  # each event holds all before it
            self.kept = len(events)
            return
        self._raw.append(events)
        self._bytes += len(events)
        self.kept += len(events) + self.HEADER
        if self._bytes > self.FOLD_BYTES:
            self._packed.append(zlib.compress(b"".join(self._raw), level=1))
            self._packed_bytes += len(self._packed[-1]) + self.HEADER
            self._raw, self._bytes = [], 0
            self.kept = self._packed_bytes

    def forget(self) -> None:
        """Let all of it go, for good."""
        self._empty()
        self.forgotten = True

    def _empty(self) -> None:
        self._packed, self._raw = [], []
        self._bytes = self._packed_bytes = self.kept = 0

    def progress(self) -> Progress:
        """The counts now; a copy, since a resumed stream is cut by them while it adds to them."""
        raw = b"".join([*map(zlib.decompress, self._packed), *self._raw])
        self._empty()
        for data in split_events(raw):
            event = parse_event(data)
            if event is None:
                continue
            try:
                if self._generate:
                    self._progress.see_generate(event, incremental=self._incremental)
                    identity = (event.get("meta_info") or {}).get("id")
                else:
                    self._progress.see(event)
                    identity = event.get("id")
            except MISSHAPEN:
                continue
            if self._progress.id is None and identity is not None:
                self._progress.id = identity
                self._progress.created = event.get("created")
        return self._progress.copy()


class Trimmer:
    """Cuts a replayed stream down to what the client lacks, under the stream's first identity."""

    def __init__(self, endpoint: Endpoint, sent: Progress, incremental: bool = False) -> None:
        self._generate = endpoint == "generate"
        self._one_time = endpoint == "completions"
        self._sent = sent
        self._incremental = incremental
        self._replay = grammar_of(endpoint).progress()
        self._created: int | None = None
        """When the replay itself says that it began."""

    @property
    def passed(self) -> bool:
        """Whether the replay has come past all that was sent: nothing of the rest is cut."""
        sent, replay = self._sent, self._replay
        return (
            not replay.lasting
            and replay.tokens >= sent.tokens
            and replay.chars >= sent.chars
            and all(replay.sizes[key] >= size for key, size in sent.sizes.items())
        )

    @property
    def recreate(self) -> tuple[bytes, bytes] | None:
        """What to replace in the rest of a completion, so that all of it began at one time: SGLang
        says so there, and in a chat tells the time of each event."""
        before, now = self._sent.created, self._created
        if not self._one_time or before is None or now is None or before == now:
            return None
        return b'"created":%d' % now, b'"created":%d' % before

    def cut(self, data: bytes) -> bytes | None:
        """One SSE event in, one out; None when the client has all of it."""
        event = parse_event(data)
        if event is None:
            return data
        try:
            left = self._cut(event)
        except MISSHAPEN:
            return data
        if not left:
            return None
        name = b"event: %b\n" % str(event["type"]).encode() if self._replay.named else b""
        return name + b"data: " + orjson.dumps(event) + b"\n\n"

    def _cut(self, event: dict[str, Any]) -> bool:
        if self._generate:
            left = self._replay.see_generate(event, self._sent, self._incremental)
            meta = event.get("meta_info")
            if isinstance(meta, dict) and self._sent.id is not None:
                meta["id"] = self._sent.id
        else:
            left = self._replay.see(event, self._sent)
            if self._sent.id is not None:
                event["id"] = self._sent.id
            if self._sent.created is not None and "created" in event:
                self._created = event["created"]
                event["created"] = self._sent.created
        return left


def split_events(raw: bytes) -> list[bytes]:
    """Whole events, each without the blank line that ends it."""
    return [event for event in raw.split(b"\n\n") if event]


def parse_event(data: bytes) -> dict[str, Any] | None:
    """The JSON object of an event; None for `[DONE]`, comments and anything else."""
    start = data.find(b"data: ")
    if start < 0:
        return None
    try:
        event = orjson.loads(data[start + 6 :])
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None
