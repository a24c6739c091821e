"""What the suite sends: the user's prompts or the project's, in rounds, and these with classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.bench.build import build
from toolkit.bench.errors import BenchError
from toolkit.bench.workload import Item, Workload
from toolkit.contract.request_class import RequestClass

if TYPE_CHECKING:
    from toolkit.bench.source import Source
    from toolkit.bench.suite.question import Traffic
    from toolkit.bench.target import Target

LATENCY_SENSITIVE, BEST_EFFORT = RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT
EVERY = 3
"""Where nobody says classes, one request in so many is latency-sensitive."""
FEW = 8
"""Output tokens of requests with classes: it is their prompts that are in each other's way."""
JOINED = 12
"""Prompts that are put together into a long one, where the requests are the project's."""


@dataclass(frozen=True, slots=True)
class SuiteLoad:
    """`requests` of one round, so many of them in flight at a time; `rounds` at most."""

    source: Source
    requests: int
    concurrency: int
    rounds: int


def rounds_of(load: SuiteLoad, target: Target) -> dict[Traffic, list[Workload]]:
    """Every round once, for each kind of traffic. BenchError: there are not prompts enough."""
    wanted = replace(load.source, num_requests=load.requests * load.rounds)
    drawn = build(wanted, target, open_loop=False)
    try:
        return {
            "plain": drawn.rounds(load.rounds),
            "classes": with_classes(drawn, load.source.prompts is None).rounds(load.rounds),
        }
    except ValueError as error:
        raise BenchError(f"{error}: give more prompts, or fewer --requests") from error


def with_classes(drawn: Workload, lengthen: bool) -> Workload:
    """Latency-sensitive and best-effort requests in turn, where the requests have no class of their
    own. `lengthen`: best-effort ones get long prompts, made of several."""
    if any(item.request_class for item in drawn):
        return drawn
    items = [
        _urgent(item) if number % EVERY == 0 else _effort(number, drawn.items, lengthen)
        for number, item in enumerate(drawn)
    ]
    return Workload(f"{drawn.name}, with classes", tuple(items), drawn.remarks)


def _urgent(item: Item) -> Item:
    return replace(item, kind=LATENCY_SENSITIVE.value, output_tokens=FEW)


def _effort(number: int, items: Sequence[Item], lengthen: bool) -> Item:
    item = replace(items[number], kind=BEST_EFFORT.value, output_tokens=FEW)
    if not lengthen or not isinstance(item.prompt, str):
        return item
    texts = [items[(number + step) % len(items)].prompt for step in range(JOINED)]
    return replace(item, prompt=" ".join(str(text) for text in texts))
