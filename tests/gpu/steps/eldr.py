"""Decode batches that ELDR and load balancers form, and how long a GPU's step takes with each.

Who runs together is taken from simulated fleets (`tests.gpu.batches`): the very policies, the same
requests for each. A batch is then decoded by a real worker, of a model of the shape of
Qwen3-30B-A3B with 16 of its 48 layers, in which every token uses the experts that its request drew
(`tests.gpu.routed_model`), at the KV lengths that the requests had. Two workers, of which one keeps
what tokens were routed to (SGLang's capturer): `with` and `without`. Times are those of the second.

figures: `fewer`: by how much a batch of one kind loads fewer experts than a mixed one; by `rates`
and arm: `requests` of a batch, `distinct` experts a layer, `step_ms` (means over tokens), and of
`eldr` each of them divided by every other arm's, over seeds with its 95 % interval;
`capture_ratio`: of a step with the capturer, paired; `captured_off`: by how much what a step loaded
was off what was drawn, at most; `fit`: ms on requests, experts a layer and KV tokens of all steps.
Fails where a request's answer is not the one that the model has, or where `captured_off` is above
2 %.
"""

import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.gpu import batches, routed_model, routing, servers
from tests.gpu.batches import ARMS, Batch
from tests.gpu.context import Context
from tests.gpu.listening import Steps, steps_at
from tests.gpu.model import SCALED_UP, TINY, Size
from toolkit.bench.runner import new_session
from toolkit.bench.stats import paired_ratio

SIDES = ("with", "without")
QUIET_S = 0.2
OFF = 0.02


def size(context: Context) -> Size:
    return TINY if context.tiny else replace(SCALED_UP, num_hidden_layers=16)


def drawn(context: Context, chances: np.ndarray) -> routing.Routing:
    """Tiny: of three rows only, since so few dimensions hold no more tokens."""
    of = size(context)
    shape = (of.num_hidden_layers, of.num_experts, of.num_experts_per_tok)
    return routing.drawn(chances[: context.size(len(chances), 3)], *shape, batches.TOKENS)


def described(context: Context, side: str) -> dict[str, Any]:
    worker = context.role(context.size(98_304, 16_384), 96, args={"disable-radix-cache": True})
    return context.described(
        f"eldr-{side}",
        "plain",
        model=str(context.scratch / "routed"),
        worker=worker,
        capture_experts=side == "with",
    )


@dataclass(frozen=True)
class Played:
    """What the steps of a batch took, and loaded where that was kept."""

    batch: Batch
    step_ms: float
    kv_tokens: float
    distinct: float = 0.0
    drawn: float = 0.0


class Player:
    """Has batches decoded by one worker."""

    def __init__(
        self, context: Context, session: Any, url: str, steps: Steps, own: routing.Routing
    ) -> None:
        self.context, self.session, self.url, self.steps, self.own = (
            context, session, url, steps, own,
        )  # fmt: skip

    async def play(self, batch: Batch, number: int) -> Played:
        """All of its requests in one body. AssertionError: an answer is not the model's."""
        source = random.Random(f"places-{number}")
        rows = [row % self.own.ids.shape[0] for row in batch.rows]
        begin = [source.randrange(self.own.tokens) for _ in rows]
        longest, answer = self.context.size(2_048, 48), self.context.size(32, 8)
        lengths = [min(kv, longest) for kv in batch.kv_tokens]
        prompts = [
            [routed_model.token(self.own, row, first + place) for place in range(length)]
            for row, first, length in zip(rows, begin, lengths, strict=True)
        ]
        self.steps.clear()
        sampling = {"temperature": 0.0, "max_new_tokens": answer, "ignore_eos": True}
        body = {"input_ids": prompts, "sampling_params": sampling}
        async with self.session.post(f"{self.url}/generate", json=body) as response:
            assert response.status == 200, await response.text()
            said = [each["output_ids"] for each in await response.json()]
        for row, first, length, ids in zip(rows, begin, lengths, said, strict=True):
            wanted = [
                routed_model.token(self.own, row, first + length + place) for place in range(answer)
            ]
            assert ids == wanted, f"a request of row {row} said {ids}, not {wanted}"
        found = await self.steps.taken()
        whole = self.steps.column(found, "requests") == len(rows)
        found = found[(self.steps.column(found, "decode") == 1) & whole]
        assert len(found), f"never were all {len(rows)} requests in a step"
        return self._told(batch, rows, [a + b for a, b in zip(begin, lengths, strict=True)], found)

    def _told(self, batch: Batch, rows: list[int], ends: list[int], found: np.ndarray) -> Played:
        column = self.steps.column
        layers = found.shape[1] - len(self.steps.tap.heard.columns)
        distinct = float(self.steps.distinct(found).mean()) / layers if layers else 0.0
        # The prompt's end gives the first token, which the first step looks at. Where they were not
        # all there from the first step on, it is the last ones.
        answer = self.context.size(32, 8)
        steps = range(max(answer - 1 - len(found), 0), answer - 1)
        designed = [self.own.distinct(rows, [end + step for end in ends]) for step in steps]
        return Played(
            batch,
            statistics.median(column(found, "seconds")) * 1e3,
            float(column(found, "kv_tokens").mean()),
            distinct,
            statistics.fmean(designed),
        )


def weighed(played: Sequence[Played], figure: str) -> float:
    """Mean over the tokens of these batches."""
    values: dict[str, list[float]] = {
        "requests": [len(each.batch.rows) for each in played],
        "distinct": [each.drawn for each in played],
        "step_ms": [each.step_ms for each in played],
    }
    return statistics.fmean(values[figure], values["requests"])


def of_rate(played: Sequence[Played]) -> dict[str, Any]:
    """Each arm's means, and ELDR's by the others'."""
    found: dict[str, Any] = {}
    seeds = sorted({each.batch.seed for each in played})
    by = {
        arm: {
            figure: [
                weighed([p for p in played if (p.batch.arm, p.batch.seed) == (arm, seed)], figure)
                for seed in seeds
            ]
            for figure in ("requests", "distinct", "step_ms")
        }
        for arm in ARMS
    }
    for arm, figures in by.items():
        found[arm] = {figure: statistics.fmean(values) for figure, values in figures.items()}
    for arm in ARMS[1:]:
        for figure, values in by[arm].items():
            found["eldr"] |= paired_ratio(by["eldr"][figure], values).keys(f"{figure}_{arm}")
    return found


def fitted(played: Sequence[Played]) -> dict[str, Any] | None:
    """Milliseconds of a step on what is in it."""
    from toolkit.profile.latency import fit

    features = np.array([[1, len(p.batch.rows), p.drawn, p.kv_tokens] for p in played])
    line = fit(
        ("1", "requests", "experts a layer", "KV tokens"),
        features,
        np.array([p.step_ms for p in played]),
    )
    if line is None:
        return None
    return {
        "terms": line.terms,
        "coefficients": line.coefficients,
        "held_out_error": line.held_out_error,
    }


async def compared(
    context: Context, urls: dict[str, str], own: routing.Routing, formed: Sequence[Batch]
) -> dict[str, Any]:
    order = list(formed)
    random.Random("order").shuffle(order)
    plain: list[Played] = []
    pairs: list[tuple[Played, Played]] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(new_session(300.0))
        players = {}
        for side in SIDES:
            steps = await stack.enter_async_context(steps_at(urls[side]))
            steps.quiet_s = QUIET_S
            players[side] = Player(context, session, urls[side], steps, own)
        largest = max(order, key=lambda batch: len(batch.rows))
        for side in SIDES:  # kernels of that size
            await players[side].play(largest, -1)
        for number, batch in enumerate(order):
            both = number % 4 == 0 and len(pairs) < context.size(24, 2)
            if both and number % 8:
                captured = await players["with"].play(batch, number)
            plain.append(await players["without"].play(batch, number))
            if both and not number % 8:
                captured = await players["with"].play(batch, number)
            if both:
                pairs.append((captured, plain[-1]))
    off = max(abs(one.distinct / one.drawn - 1) for one, _ in pairs)
    ratio = paired_ratio([a.step_ms for a, _ in pairs], [b.step_ms for _, b in pairs])
    rates = {rate: [p for p in plain if p.batch.rate == rate] for rate in batches.RATES}
    return {
        "rates": {f"{rate:g}": of_rate(found) for rate, found in rates.items() if found},
        **ratio.keys("capture_ratio"),
        "captured_off": off,
        "fit": fitted(plain),
        "batches": len(plain),
    }


def measure(context: Context, figures: dict[str, Any]) -> None:
    of = size(context)
    experts = batches.specialised(SCALED_UP)
    figures["fewer"] = batches.fewer(experts, SCALED_UP)
    own = drawn(context, batches.chances(experts))
    routed_model.make(context.scratch / "routed", of, own, context.device)
    formed = batches.formed(experts, *((2, 1) if context.tiny else (5, 3)))
    if context.tiny:
        formed = [
            replace(batch, rows=batch.rows[:6], kv_tokens=batch.kv_tokens[:6]) for batch in formed
        ]
    with ExitStack() as stack:
        sides = {
            side: servers.alone(context, described(context, side), f"eldr-{side}") for side in SIDES
        }
        urls = servers.abreast(stack, sides)
        with context.measuring("eldr"):
            figures |= asyncio.run(compared(context, urls, own, formed))
    assert figures["captured_off"] <= OFF, "a step loaded other experts than its tokens drew"
