"""A workload: what is sent, how much is asked for, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

Label = Literal["domain", "language", "cell"]


@dataclass(frozen=True, slots=True)
class Item:
    """One request. A prompt is text, or token ids when its length has to be exact."""

    prompt: str | tuple[int, ...]
    output_tokens: int
    arrival_s: float = 0.0  # seconds after the start of the run
    domain: str = ""
    language: str = ""
    phase: int = 0
    """Which part of a workload whose mix changes it belongs to; see `phases.py`."""
    user: str = ""
    """Who sends it; "" for nobody in particular."""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) for the chat endpoint; () makes the prompt one message of the user."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("an item needs a prompt")
        if self.output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1, not {self.output_tokens}")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s must not be negative, not {self.arrival_s}")

    def label(self, kind: Label | None) -> str:
        """What the router may be told of it; a cell is domain/language. "" when it has none."""
        if kind is None:
            return ""
        parts = (self.domain, self.language) if kind == "cell" else (getattr(self, kind),)
        return "/".join(parts) if all(parts) else ""


@dataclass(frozen=True, slots=True)
class Workload:
    """The items of a run in the order of their arrivals."""

    name: str
    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any prompt, length or arrival (in microseconds)."""
        digest = hashlib.sha256()
        for item in self.items:
            prompt = item.prompt if isinstance(item.prompt, str) else repr(item.prompt)
            digest.update(f"{len(prompt)}:{prompt}".encode())
            more = f"|{item.user}" if item.user else ""
            more += f"|{item.messages!r}" if item.messages else ""
            digest.update(f"|{item.output_tokens}|{item.arrival_s:.6f}{more}\n".encode())
        return digest.hexdigest()[:16]

    def rounds(self, count: int) -> list[Workload]:
        """Cut into `count` parts of equal size; each starts at arrival 0.

        A part has its share of every phase, in order, so that each goes through all of them; of a
        phase its shares are consecutive. A remainder that does not fill every part is left out, so
        that all rounds weigh the same.
        """
        phases = [list(items) for _, items in groupby(self.items, lambda item: item.phase)]
        for items in phases:
            if len(items) < count:
                raise ValueError(f"{len(items)} requests cannot fill {count} rounds")
        return [
            Workload(
                f"{self.name}[{index}]",
                _joined([_share(items, index, len(items) // count) for items in phases]),
            )
            for index in range(count)
        ]


def _share(items: list[Item], index: int, size: int) -> list[Item]:
    return items[index * size : (index + 1) * size]


def _joined(parts: list[list[Item]]) -> tuple[Item, ...]:
    """Parts played one after the other, from 0 on, a part's mean gap between it and the next."""
    items: list[Item] = []
    start = 0.0
    for part in parts:
        first, last = part[0].arrival_s, part[-1].arrival_s
        items += [replace(item, arrival_s=start + item.arrival_s - first) for item in part]
        start += (last - first) * len(part) / max(1, len(part) - 1)
    return tuple(items)
