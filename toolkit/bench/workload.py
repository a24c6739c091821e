"""A workload: what is sent, how much is asked for, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from toolkit.contract.request_class import RequestClass

Label = Literal["domain", "language", "cell", "class"]
_LABELLED = {"cell": ("domain", "language"), "class": ("kind",)}
"""What a label is made of, where it has another name."""
_CLASSES = frozenset(RequestClass)


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
    kind: str = ""
    """Its class, as interactive or batch; see `request_class`."""
    conversation: int | None = None
    """Turns of one conversation stand one after the other and have its number; each is sent when
    the one before has its answer. None: a request of its own."""
    turn: int = 0
    think_s: float = 0.0
    """Seconds between the answer of the turn before and this one."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("an item needs a prompt")
        if self.output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1, not {self.output_tokens}")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s must not be negative, not {self.arrival_s}")
        if self.think_s < 0:
            raise ValueError(f"think_s must not be negative, not {self.think_s}")

    @property
    def request_class(self) -> str:
        """What the router is told in the header `x-toolkit-class`; "" where `kind` is no
        `RequestClass` value, but a word of the user's own."""
        return self.kind if self.kind in _CLASSES else ""

    def label(self, kind: Label | None) -> str:
        """What the router may be told of it; a cell is domain/language. "" when it has none."""
        if kind is None:
            return ""
        parts = [getattr(self, name) for name in _LABELLED.get(kind, (kind,))]
        return "/".join(parts) if all(parts) else ""


def backwards(item: Item) -> Item:
    """A request as long as this one by itself, which leaves nothing in a prefix cache that this one
    would find: its texts end to begin."""
    messages = tuple((role, content[::-1]) for role, content in item.messages)
    return replace(item, prompt=item.prompt[::-1], messages=messages, conversation=None, turn=0)


@dataclass(frozen=True, slots=True)
class Workload:
    """The items of a run in the order of their arrivals."""

    name: str
    items: tuple[Item, ...]
    remarks: tuple[str, ...] = ()
    """What a reader of the numbers has to know of how it was made."""

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
            if item.conversation is not None:
                more += f"|{item.conversation}.{item.turn}+{item.think_s:.6f}"
            digest.update(f"|{item.output_tokens}|{item.arrival_s:.6f}{more}\n".encode())
        return digest.hexdigest()[:16]

    def chains(self) -> list[tuple[Item, ...]]:
        """What is sent one after the other: the turns of a conversation, or a request alone."""
        return _chains(self.items)

    def rounds(self, count: int) -> list[Workload]:
        """Cut into `count` parts of as many chains; each starts at arrival 0.

        A part has its share of every phase, in order, so that each goes through all of them; of a
        phase its shares are consecutive. A remainder that does not fill every part is left out, so
        that all rounds weigh the same; no conversation is cut.
        """
        phases = [
            _chains(tuple(items)) for _, items in groupby(self.items, lambda item: item.phase)
        ]
        for items in phases:
            if len(items) < count:
                what = "requests" if all(len(chain) == 1 for chain in items) else "conversations"
                raise ValueError(f"{len(items)} {what} cannot fill {count} rounds")
        return [
            Workload(
                f"{self.name}[{index}]",
                _joined([_share(items, index, len(items) // count) for items in phases]),
            )
            for index in range(count)
        ]


def _chains(items: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    found: list[list[Item]] = []
    for item in items:
        alone = item.conversation is None or not found
        if alone or found[-1][-1].conversation != item.conversation:
            found.append([item])
        else:
            found[-1].append(item)
    return [tuple(chain) for chain in found]


def _share(chains: list[tuple[Item, ...]], index: int, size: int) -> list[tuple[Item, ...]]:
    return chains[index * size : (index + 1) * size]


def _joined(parts: list[list[tuple[Item, ...]]]) -> tuple[Item, ...]:
    """Parts played one after the other, from 0 on, a part's mean gap between it and the next."""
    items: list[Item] = []
    start = 0.0
    for part in parts:
        first, last = part[0][0].arrival_s, part[-1][0].arrival_s
        items += [
            replace(item, arrival_s=start + item.arrival_s - first)
            for chain in part
            for item in chain
        ]
        start += (last - first) * len(part) / max(1, len(part) - 1)
    return tuple(items)
