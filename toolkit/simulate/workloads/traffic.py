"""Traffic made from distributions, as ServeGen does: clients with rates and bursts of their own,
kinds of requests with long tails, sessions of several turns, drift.

Source: ServeGen (arXiv 2505.09999): real traffic is many clients of very different rates, each with
its own burstiness and lengths, not one Poisson process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import pi, sin
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolkit.contract.request_class import RequestClass
from toolkit.simulate.request import Request

BLOCK = 256
"""Tokens of a prompt block that sessions share."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestKind(_Strict):
    """One kind of request. `prompt` (of a first turn, or what a later one adds) and `answer`:
    median in tokens and standard deviation of the logarithm. `turns`: mean of a session, geometric;
    `pause`: mean seconds from a turn to the next one beyond its own answer. `late_share`: the share
    at the end of the traffic, if it changes on the way. `urgent`, `best_effort`: shares of it that
    are latency-sensitive, and best-effort."""

    name: str
    share: float = Field(ge=0)
    late_share: Annotated[float | None, Field(ge=0)] = None
    prompt: tuple[float, float]
    answer: tuple[float, float]
    turns: Annotated[float, Field(ge=1)] = 1.0
    pause: Annotated[float, Field(ge=0)] = 30.0
    urgent: Annotated[float, Field(ge=0, le=1)] = 0.0
    best_effort: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _classes_are_parts(self) -> RequestKind:
        if self.urgent + self.best_effort > 1:
            raise ValueError("urgent and best_effort are shares of one kind: 1 at most together")
        return self


class TrafficModel(_Strict):
    """`rate`: requests a second in the mean (all turns). `clients` have rates that follow Zipf's
    law; `burst`: coefficient of variation of a client's gaps (Gamma; 1 is Poisson). `swing`: the
    rate goes up and down by this share once every `period` seconds. `longest`: prompt and answer
    tokens at most. A client is a user."""

    rate: float = Field(gt=0)
    seconds: float = Field(gt=0)
    kinds: tuple[RequestKind, ...] = Field(min_length=1)
    clients: Annotated[int, Field(ge=1)] = 50
    burst: Annotated[float, Field(gt=0)] = 1.0
    swing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    period: Annotated[float, Field(gt=0)] = 86_400.0
    longest: tuple[int, int] = (32_768, 8_192)

    @model_validator(mode="after")
    def _some_share(self) -> TrafficModel:
        for done in (0.0, 1.0):
            if not any(_shares(self.kinds, done)):
                raise ValueError("at least one kind needs a share above 0, at any time")
        return self


CONVERSATION = RequestKind(
    name="conversation", share=1.0, prompt=(1020.0, 1.0), answer=(129.0, 1.0), turns=1.0
)
"""Lengths as in Azure's LLM inference trace 2023, conversation (Splitwise, arXiv 2311.18677)."""


def azure_like(rate: float, seconds: float) -> TrafficModel:
    """Azure's conversation load: 19,366 requests in an hour are a rate of 5.4."""
    return TrafficModel(
        rate=rate, seconds=seconds, kinds=(CONVERSATION,), burst=1.3, longest=(14_000, 1_500)
    )


class _Session:
    """One conversation: whose, of which kind, what was said so far."""

    __slots__ = ("blocks", "kind", "left", "said", "tag", "user")

    def __init__(self, kind: RequestKind, user: str, left: int, tag: int) -> None:
        self.kind = kind
        self.user = user
        self.left = left
        self.said = 0
        self.blocks: tuple[int, ...] = ()
        self.tag = tag


def generate(traffic: TrafficModel, seed: int = 0) -> Iterator[Request]:
    """The requests in order of arrival, one at a time; equal seeds give equal traffic."""
    source = random.Random(f"traffic-{seed}")
    kinds = traffic.kinds
    # Sessions of fewer turns must begin more often: as often as ever needed, then thinned.
    fewest = min(_mean_turns(kinds, 0.0), _mean_turns(kinds, 1.0))
    weights = [1 / (n + 1) for n in range(traffic.clients)]
    per_weight = traffic.rate / fewest / sum(weights) / (1 - traffic.swing / 2)
    shape = 1 / traffic.burst**2
    upcoming: list[tuple[float, int, int | _Session]] = []
    for client, weight in enumerate(weights):
        gap = 1 / (weight * per_weight)
        upcoming.append((source.random() * gap, client, client))
    heapify(upcoming)
    number, sequence = 0, traffic.clients
    while upcoming:
        now, order, who = heappop(upcoming)
        if now >= traffic.seconds:
            continue
        if isinstance(who, int):
            gap = 1 / (weights[who] * per_weight)
            heappush(upcoming, (now + source.gammavariate(shape, gap / shape), order, who))
            done = now / traffic.seconds
            if source.random() > _swung(traffic, now) * fewest / _mean_turns(kinds, done):
                continue
            kind = source.choices(kinds, _shares(kinds, done))[0]
            sequence += 1  # also its tag: what two conversations say has nothing in common
            who = _Session(kind, f"client-{who}", _turns(kind, source), sequence)
        request = _turn(who, number, now, traffic, source)
        number += 1
        yield request
        who.left -= 1
        if who.left:
            sequence += 1
            pause = source.expovariate(1 / who.kind.pause) if who.kind.pause else 0.0
            # About what its answer takes to be read: 50 tokens a second.
            heappush(upcoming, (now + request.output / 50 + pause, sequence, who))


def _swung(traffic: TrafficModel, now: float) -> float:
    """The share of arrivals that are kept now: 1 - swing / 2 in the mean of a whole period."""
    return 1 - traffic.swing * (1 + sin(2 * pi * now / traffic.period)) / 2


def _shares(kinds: Sequence[RequestKind], done: float) -> list[float]:
    """Of each kind, when that much of the time is over."""
    return [
        k.share if k.late_share is None else k.share + (k.late_share - k.share) * done
        for k in kinds
    ]


def _mean_turns(kinds: Sequence[RequestKind], done: float) -> float:
    shares = _shares(kinds, done)
    return sum(s * k.turns for s, k in zip(shares, kinds, strict=True)) / sum(shares)


def _turns(kind: RequestKind, source: random.Random) -> int:
    """Geometric, 1 or more, with this mean."""
    turns = 1
    while source.random() > 1 / kind.turns:
        turns += 1
    return turns


def _turn(
    session: _Session, number: int, now: float, traffic: TrafficModel, source: random.Random
) -> Request:
    kind = session.kind
    new, answer = (
        max(1, round(median * source.lognormvariate(0.0, spread)))
        for median, spread in (kind.prompt, kind.answer)
    )
    prompt = min(session.said + new, traffic.longest[0])
    answer = min(answer, traffic.longest[1])
    blocks = session.blocks
    if kind.turns > 1:
        chain = list(blocks[: prompt // BLOCK])
        while len(chain) < prompt // BLOCK:
            chain.append(hash((chain[-1] if chain else 0, session.tag, len(chain))))
        blocks = session.blocks = tuple(chain)
    session.said = prompt + answer
    return Request(
        number,
        now,
        prompt,
        answer,
        user=session.user,
        blocks=blocks,
        block=BLOCK if blocks else 0,
        label=kind.name,
        request_class=_class(kind, source),
        conversation=session.tag if kind.turns > 1 else None,
    )


def _class(kind: RequestKind, source: random.Random) -> RequestClass:
    if not kind.urgent and not kind.best_effort:
        return RequestClass.STANDARD
    drawn = source.random()
    if drawn < kind.urgent:
        return RequestClass.LATENCY_SENSITIVE
    effort = drawn < kind.urgent + kind.best_effort
    return RequestClass.BEST_EFFORT if effort else RequestClass.STANDARD


def mixed(shares: Mapping[str, float], base: RequestKind) -> tuple[RequestKind, ...]:
    """`base` once for each label (a domain, a language), with that share."""
    return tuple(base.model_copy(update={"name": n, "share": s}) for n, s in shares.items())
