"""The decode worker of a long prompt, chosen while its last chunks run, against late dispatch.

One prefill and one decode worker of the scaled-up model in one GPU's memory, NIXL between them: so
the KV crosses that memory, not a network, and what is shown is that it crosses while chunks run,
and what that costs them. Prompts of 16 chunks, pairs of them in an order that alternates
(`tests.benchmarks.early_choice`), asked for early wherever that saves anything.

figures: as `tests.benchmarks.early_choice` has them, without centroids. Fails where no prompt's
decode worker was chosen early.
"""

import asyncio
import random
from typing import Any

from tests.benchmarks.early_choice import paired
from tests.gpu.context import Context
from tests.gpu.model import scaled_up
from toolkit.bench.workload import Item

CHUNKS = 16


def chunk(context: Context) -> int:
    return context.size(2048, 128)


def described(context: Context) -> dict[str, Any]:
    tokens, most = context.size(131_072, 16_384), context.size(16, 8)
    args = {"chunked-prefill-size": chunk(context)}
    return context.described(
        "early",
        "pd",
        model=str(scaled_up(context)),
        prefill=context.role(tokens, most, args=args, early_choice=0),
        decode=context.role(tokens, most),
    )


def measure(context: Context, figures: dict[str, Any]) -> None:
    source = random.Random("early")

    def item(_round: int) -> Item:
        ids = source.choices(range(300, 4000), k=CHUNKS * chunk(context))
        return Item(tuple(ids), context.size(32, 4))

    with context.deployed(described(context), "early") as up, context.measuring("early"):
        pairs = asyncio.run(paired(up, context.size(20, 2), item))
    figures |= pairs.figures(chunk(context))
    assert figures["chosen_early"] > 0, "no decode worker was chosen before its prompt was through"
