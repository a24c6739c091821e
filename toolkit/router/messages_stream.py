"""What a client has of a stream of /v1/messages (Anthropic's events, as SGLang 0.5.21 writes them).

A message is a list of blocks, each begun, filled by deltas and ended; the id of the message, and
of a tool's call, are random and stand in the event that begins it, so that a replay under another
id loses nothing when that event is cut.
"""

from __future__ import annotations

from typing import Any

from toolkit.router.progress import Progress

_TEXTS = ("text", "thinking", "partial_json")


class MessagesProgress(Progress):
    """Counts characters of texts by block, and which events that come once were sent."""

    named = True

    @property
    def has_output(self) -> bool:
        return any(size for key, size in self.sizes.items() if key[:1].isdigit())

    def see(self, event: dict[str, Any], cut: Progress | None = None) -> bool:
        kind, index = event["type"], event.get("index")
        if kind == "ping":
            return True
        if kind != "content_block_delta":
            new = self._once(f"{kind} {index}", cut)
            block = event.get("content_block")
            if new and isinstance(block, dict) and block.get("type") == "tool_use":
                self.sizes[f"{index} tool"] = 1
            return new
        delta, left = event["delta"], False
        for name in _TEXTS:
            left = self._text(delta, name, f"{index} {name}", cut) or left
        if "signature" in delta:
            left = self._once(f"{index} signature", cut)
        return left
