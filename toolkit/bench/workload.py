"""A workload: what is sent, how much is asked for, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Item:
    """One request. A prompt is text, or token ids when its length has to be exact."""

    prompt: str | tuple[int, ...]
    output_tokens: int
    arrival_s: float = 0.0  # seconds after the start of the run
    domain: str = ""
    language: str = ""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("an item needs a prompt")
        if self.output_tokens < 1:
            raise ValueError(f"output_tokens must be at least 1, not {self.output_tokens}")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s must not be negative, not {self.arrival_s}")


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
            digest.update(f"|{item.output_tokens}|{item.arrival_s:.6f}\n".encode())
        return digest.hexdigest()[:16]

    def rounds(self, count: int) -> list[Workload]:
        """Cut into `count` consecutive parts of equal size; each starts at arrival 0.

        A remainder that does not fill every part is left out, so that all rounds weigh the same.
        """
        size = len(self.items) // count
        if size == 0:
            raise ValueError(f"{len(self.items)} requests cannot fill {count} rounds")
        return [
            self._part(f"{self.name}[{index}]", self.items[index * size : (index + 1) * size])
            for index in range(count)
        ]

    @staticmethod
    def _part(name: str, items: tuple[Item, ...]) -> Workload:
        start = items[0].arrival_s
        return Workload(
            name, tuple(replace(item, arrival_s=item.arrival_s - start) for item in items)
        )
