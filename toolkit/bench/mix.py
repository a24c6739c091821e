"""Workloads made of the project's own prompts, mixed by domain and language."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from toolkit.bench.errors import BenchError
from toolkit.bench.workload import Item


class LabelledText(Protocol):
    """What a prompt row must offer (`toolkit.embedded.load_prompts` gives these)."""

    @property
    def domain(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def text(self) -> str: ...


def parse_mix(text: str, known: Iterable[str], what: str) -> dict[str, float]:
    """`code:2,math` -> {"code": 2.0, "math": 1.0}; "" or "all" -> every known name, weight 1.

    Raises BenchError for an unknown name or a weight that is not above 0.
    """
    names = sorted(set(known))
    if text in ("", "all"):
        return dict.fromkeys(names, 1.0)
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        if name not in names:
            raise BenchError(f"unknown {what} {name!r}; there are {', '.join(names)}")
        try:
            mix[name] = float(weight or 1)
        except ValueError:
            mix[name] = 0.0
        if mix[name] <= 0:
            raise BenchError(f"the weight of {what} {name} must be a number above 0")
    return mix


def draw(
    prompts: Sequence[LabelledText],
    domains: Mapping[str, float],
    languages: Mapping[str, float],
    count: int,
    output_tokens: int,
    seed: int,
) -> list[Item]:
    """`count` items of one mix; see `Deck.draw`."""
    return Deck(prompts, seed).draw(domains, languages, count, output_tokens)


class Deck:
    """Hands out prompts by domain and language. A cell (domain, language) gives all of its prompts
    before it repeats one, over all draws together, so prefix hits stay rare."""

    def __init__(self, prompts: Sequence[LabelledText], seed: int) -> None:
        self._cells: dict[tuple[str, str], list[LabelledText]] = {}
        for prompt in prompts:
            self._cells.setdefault((prompt.domain, prompt.language), []).append(prompt)
        self._left: dict[tuple[str, str], list[LabelledText]] = {}
        self._source = random.Random(f"prompts-{seed}")

    def draw(
        self,
        domains: Mapping[str, float],
        languages: Mapping[str, float],
        count: int,
        output_tokens: int,
    ) -> list[Item]:
        """`count` items: a cell by the weights' product, then a prompt of that cell."""
        names = sorted(n for n in self._cells if n[0] in domains and n[1] in languages)
        if not names:
            raise BenchError("no prompt fits the domains and languages asked for")
        weights = [domains[domain] * languages[language] for domain, language in names]
        items = []
        for name in self._source.choices(names, weights, k=count):
            if not self._left.get(name):
                cell = self._cells[name]
                self._left[name] = self._source.sample(cell, len(cell))
            prompt = self._left[name].pop()
            items.append(
                Item(prompt.text, output_tokens, domain=prompt.domain, language=prompt.language)
            )
        return items
