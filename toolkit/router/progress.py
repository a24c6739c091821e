"""What a client has of a stream, counted field by field: chat, completions and /generate."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Self

_TEXTS = ("content", "reasoning_content")
_LISTS = ("token_ids", "prompt_token_ids")
_NO_OUTPUT = frozenset({"role", "finish", "usage"})
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

    def copy(self) -> Self:
        other = type(self)()
        other.__dict__.update(self.__dict__)
        other.sizes = self.sizes.copy()
        return other

    named = False
    """Whether its events have a name in front (`event: ...`)."""
    lasting = False
    """Whether all that follows a replay has to be rewritten, too."""

    @property
    def has_output(self) -> bool:
        """True when some generated text went out, not only a role or an end."""
        return self.tokens > 0 or any(
            size for key, size in self.sizes.items() if key not in _NO_OUTPUT
        )

    def see(self, event: dict[str, Any], cut: Progress | None = None) -> bool:
        """Count an event; with `cut`, first drop from it what `cut` says was sent.

        Changes `event` in place. Returns False when nothing of it is left to send.
        """
        choices, left = event.get("choices"), False
        if not choices:
            return self._once("usage", cut) if event.get("usage") else True
        for choice in choices:
            left = self._choice(choice, cut) or left
        return left

    def _choice(self, choice: dict[str, Any], cut: Progress | None) -> bool:
        left = choice.get("finish_reason") is not None and self._once("finish", cut)
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
        finished = meta.get("finish_reason") is not None and self._once("finish", cut)
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
