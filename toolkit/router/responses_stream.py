"""What a client has of a stream of /v1/responses (OpenAI's events, as SGLang 0.5.21 writes them).

Every event has a number, and names its item by a random id that its last events and the whole
answer at the end repeat. So all of a stream that another worker goes on with is rewritten: under
the ids and the time that the client has, numbered on.
"""

from __future__ import annotations

from typing import Any, Self

from toolkit.router.progress import Progress

_RANDOM = ("id", "call_id")
_PLACE = ("output_index", "content_index", "summary_index")


class ResponsesProgress(Progress):
    """Counts characters of deltas by place, and which events that come once were sent."""

    named = True
    lasting = True

    def __init__(self) -> None:
        super().__init__()
        self.numbered = 0
        """Events that were sent."""
        self.items: dict[int, dict[str, str]] = {}
        """The random names of each item of the answer, by its index."""

    def copy(self) -> Self:
        other = super().copy()
        other.items = {index: dict(names) for index, names in self.items.items()}
        return other

    @property
    def has_output(self) -> bool:
        return any(size for key, size in self.sizes.items() if ".delta " in key)

    def see(self, event: dict[str, Any], cut: Progress | None = None) -> bool:
        kind = event["type"]
        key = " ".join([kind, *(str(event.get(name)) for name in _PLACE)])
        if kind.endswith(".delta"):
            left = self._text(event, "delta", key, cut)
        else:
            left = self._once(key, cut)
        if isinstance(cut, ResponsesProgress):
            if left:
                _rename(event, cut)
                event["sequence_number"] = cut.numbered + self.numbered
        else:
            self._note(event)
            left = True
        self.numbered += left
        return left

    def _note(self, event: dict[str, Any]) -> None:
        response = event.get("response")
        if isinstance(response, dict) and self.created is None:
            self.created = response["created_at"]
        item = event.get("item")
        if isinstance(item, dict):
            names = self.items.setdefault(event["output_index"], {})
            for name in _RANDOM:
                if isinstance(item.get(name), str):
                    names.setdefault(name, item[name])


def _rename(event: dict[str, Any], sent: ResponsesProgress) -> None:
    """As the client has it; an item that it has not seen keeps the names of this replay."""
    index = event.get("output_index")
    names = sent.items.get(index, {}) if isinstance(index, int) else {}
    if "item_id" in event:
        event["item_id"] = names.get("id", event["item_id"])
    if isinstance(event.get("item"), dict):
        _put(event["item"], names)
    response = event.get("response")
    if not isinstance(response, dict):
        return
    if sent.created is not None:
        response["created_at"] = sent.created
    for place, item in enumerate(response.get("output") or ()):
        _put(item, sent.items.get(place, {}))


def _put(item: dict[str, Any], names: dict[str, str]) -> None:
    for name, value in names.items():
        if name in item:
            item[name] = value
