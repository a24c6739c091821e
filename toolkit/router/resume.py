"""What a client already has of a stream, and how a replay is cut down to the rest.

A resumed stream starts again from the first output token, chunked differently. Per field of the
choice, the characters (or list entries) that went out before are dropped from the replay.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Any

import orjson

from toolkit.router.request import Endpoint

MISSHAPEN = (AttributeError, TypeError, ValueError)
"""Raised by an event that is no stream's: it went to the client as it is, and counts nothing."""

_TEXTS = ("content", "reasoning_content")
_LISTS = ("token_ids", "prompt_token_ids")
_LOGPROB_LISTS = ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset", "refusal")


class Progress:
    """Counts of one stream, by field: characters of texts, entries of lists, heads seen."""

    def __init__(self) -> None:
        self.sizes: defaultdict[str, int] = defaultdict(int)
        self.tokens = 0
        """/generate: completion_tokens of the last event."""
        self.chars = 0
        """/generate, cumulative streams: characters of `text` in the last event."""
        self.id: str | None = None
        self.created: int | None = None

    def copy(self) -> Progress:
        other = Progress()
        other.__dict__.update(self.__dict__)
        other.sizes = self.sizes.copy()
        return other

    @property
    def has_output(self) -> bool:
        """True when some generated text went out, not only a role."""
        return self.tokens > 0 or any(size for key, size in self.sizes.items() if key != "role")

    def see(self, event: dict[str, Any], cut: Progress | None = None) -> bool:
        """Count an event; with `cut`, first drop from it what `cut` says was sent.

        Changes `event` in place. Returns False when nothing of it is left to send.
        """
        left = False
        for choice in event.get("choices") or ():
            left = self._choice(choice, cut) or left
        return left or not event.get("choices")

    def _choice(self, choice: dict[str, Any], cut: Progress | None) -> bool:
        left = choice.get("finish_reason") is not None
        left = self._text(choice, "text", "text", cut) or left
        delta = choice.get("delta")
        if isinstance(delta, dict):
            left = self._delta(delta, cut) or left
        for name in _LISTS:
            left = self._list(choice, name, name, cut) or left
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            for name in _LOGPROB_LISTS:
                left = self._list(logprobs, name, f"logprobs.{name}", cut) or left
        return left

    def _delta(self, delta: dict[str, Any], cut: Progress | None) -> bool:
        left = False
        if delta.get("role"):
            left = self._once("role", cut)
            if not left:
                delta.pop("role")
        for name in _TEXTS:
            left = self._text(delta, name, name, cut) or left
        calls = delta.get("tool_calls")
        if calls:
            kept = [call for call in calls if self._tool_call(call, cut)]
            delta["tool_calls"] = kept or None
            left = bool(kept) or left
        if delta.get("hidden_states") is not None:
            left = True
        return left

    def _tool_call(self, call: dict[str, Any], cut: Progress | None) -> bool:
        key = f"tool{call.get('index', 0)}"
        function = call.get("function") or {}
        left = False
        if function.get("name"):
            left = self._once(f"{key}.name", cut)
            if not left:  # the client has its id and name; a second id would be another call
                function["name"] = call["id"] = None
        return self._text(function, "arguments", f"{key}.arguments", cut) or left

    def _once(self, key: str, cut: Progress | None) -> bool:
        """A thing sent at most once: True when it is new to the client."""
        self.sizes[key] = 1
        return cut is None or not cut.sizes.get(key)

    def _text(self, holder: dict[str, Any], name: str, key: str, cut: Progress | None) -> bool:
        text = holder.get(name)
        if not isinstance(text, str) or not text:
            return False
        holder[name] = text = text[self._skip(key, len(text), cut) :]
        return bool(text)

    def _list(self, holder: dict[str, Any], name: str, key: str, cut: Progress | None) -> bool:
        items = holder.get(name)
        if not isinstance(items, list) or not items:
            return False
        holder[name] = items = items[self._skip(key, len(items), cut) :]
        return bool(items)

    def _skip(self, key: str, size: int, cut: Progress | None) -> int:
        before = self.sizes[key]
        self.sizes[key] = before + size
        return 0 if cut is None else max(0, min(size, cut.sizes.get(key, 0) - before))

    def see_generate(
        self, event: dict[str, Any], cut: Progress | None = None, incremental: bool = False
    ) -> bool:
        """`see` for /generate, whose events hold everything so far unless `incremental`."""
        meta = event.get("meta_info") or {}
        finished = meta.get("finish_reason") is not None
        if incremental:
            left = self._text(event, "text", "text", cut)
            left = self._list(event, "output_ids", "output_ids", cut) or left
            for name in ("output_token_logprobs", "output_top_logprobs"):
                left = self._list(meta, name, name, cut) or left
            return left or finished
        self.tokens = max(self.tokens, int(meta.get("completion_tokens") or 0))
        self.chars = max(self.chars, len(event.get("text") or ""))
        if cut is None or finished:
            return True
        return self.tokens > cut.tokens or self.chars > cut.chars


class Sent:
    """What has gone to the client, kept as raw bytes and counted only when it is needed.

    Counting costs a JSON parse per event, which the hot path must not pay: raw events are packed
    when they pass `FOLD_BYTES` (they shrink some thirtyfold), and parsed when a resume asks.
    """

    FOLD_BYTES = 64 * 1024

    def __init__(self, endpoint: Endpoint, incremental: bool = False) -> None:
        self._generate = endpoint == "generate"
        self._incremental = incremental
        self._cumulative = self._generate and not incremental
        self._progress = Progress()
        self._packed: list[bytes] = []
        self._raw: list[bytes] = []
        self._bytes = 0
        self.events = False

    def add(self, events: bytes) -> None:
        """Whole SSE events, as they were sent."""
        self.events = True
        if self._cumulative:
            self._raw = [events]  # each event holds all before it
            return
        self._raw.append(events)
        self._bytes += len(events)
        if self._bytes > self.FOLD_BYTES:
            self._packed.append(zlib.compress(b"".join(self._raw), level=1))
            self._raw, self._bytes = [], 0

    def progress(self) -> Progress:
        """The counts now; a copy, since a resumed stream is cut by them while it adds to them."""
        raw = b"".join([*map(zlib.decompress, self._packed), *self._raw])
        self._packed, self._raw, self._bytes = [], [], 0
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
        self._replay = Progress()
        self._created: int | None = None
        """When the replay itself says that it began."""

    @property
    def passed(self) -> bool:
        """Whether the replay has come past all that was sent: nothing of the rest is cut."""
        sent, replay = self._sent, self._replay
        return (
            replay.tokens >= sent.tokens
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
        return b"data: " + orjson.dumps(event) + b"\n\n" if left else None

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
