"""Speculative decoding: what a draft costs where it is never right, and gains where it is.

One worker an arm, of which one works at a time, of a model whose layers add so little that a
token's successor hangs on that token alone (`tests.gpu.model.quiet`; as large, and as slow, as the
others' model). Arms: `none`; `random`, an MTP layer of random weights; `right`, one that hands on
the embedding, which is right nearly always. Three tokens are drafted in a chain, and four are
verified. Batches of equal prompts' lengths; only steps of the whole batch count.

figures: of each batch and arm `step_ms` (median), `tokens` that a step gives a request, `token_ms`,
and of the drafts `step_ratio` and `token_ratio` to `none`; `distinct`, experts that a step loads, a
layer; `different`, answers that are not those of `none` (on a GPU batches of another shape may
round otherwise). Fails where a request was lost; on a CPU, where answers differ.
"""

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tests.e2e import calls
from tests.gpu import servers
from tests.gpu.context import Context
from tests.gpu.listening import Steps, steps_of, whole_batch
from tests.gpu.model import draft, quiet
from toolkit.launch.running import Running

ARMS = ("none", "random", "right")
DRAFTED = 3
PROMPT = 64


def batches(context: Context) -> tuple[int, ...]:
    return (1, 4) if context.tiny else (1, 8, 32, 64)


def described(context: Context, arm: str) -> dict[str, Any]:
    most = max(batches(context))
    args = {"disable-radix-cache": True}
    worker = context.role(context.size(65_536, 8192), most + 8, args=args)
    found = context.described(
        f"draft-{arm}", "plain", worker=worker, capture_experts=True, model=str(quiet(context))
    )
    if arm != "none":
        folder = str(draft(context, arm == "right"))
        found["speculative"] = {"draft": folder, "steps": DRAFTED}
    return found


async def cell(
    context: Context, url: str, steps: Steps, count: int
) -> tuple[dict[str, float], list[list[int]]]:
    """Figures of one batch, and what it said."""
    tokens = context.size(160, 24)
    bodies = [
        calls.greedy(calls.prompt(f"draft-{n}", PROMPT), tokens, stream=False) for n in range(count)
    ]
    rows, answers = await whole_batch(url, steps, bodies)
    layers = rows.shape[1] - len(steps.tap.heard.columns)
    seconds = statistics.median(steps.column(rows, "seconds"))
    given = float(steps.column(rows, "new_tokens").sum() / steps.column(rows, "requests").sum())
    found = {
        "step_ms": seconds * 1e3,
        "tokens": given,
        "token_ms": seconds * 1e3 / given,
        "distinct": float(steps.distinct(rows).mean()) / layers,
    }
    return found, [answer.ids for answer in answers]


def compared(
    found: dict[str, dict[str, float]], said: dict[str, list[list[int]]]
) -> dict[str, Any]:
    """With what each draft does to it."""
    none = found["none"]
    for arm in ARMS[1:]:
        for name in ("step", "token"):
            found[arm][f"{name}_ratio"] = found[arm][f"{name}_ms"] / none[f"{name}_ms"]
        pairs: Sequence[tuple[list[int], list[int]]] = list(
            zip(said[arm], said["none"], strict=True)
        )
        found[arm]["different"] = sum(one != other for one, other in pairs)
    return dict(found)


def measure(context: Context, figures: dict[str, Any]) -> None:
    found: dict[int, dict[str, dict[str, float]]] = {count: {} for count in batches(context)}
    said: dict[int, dict[str, list[list[int]]]] = {count: {} for count in batches(context)}

    async def main(arm: str, up: Running) -> None:
        async with steps_of(up, "worker-0") as steps:
            await cell(context, up.router_url, steps, max(batches(context)))
            for count in batches(context):
                found[count][arm], said[count][arm] = await cell(
                    context, up.router_url, steps, count
                )

    with ExitStack() as stack:
        arms = {arm: context.deployed(described(context, arm), f"draft-{arm}") for arm in ARMS}
        ups = servers.abreast(stack, arms)
        stack.enter_context(context.measuring("draft"))
        for arm, up in ups.items():
            asyncio.run(main(arm, up))
    figures |= {str(count): compared(found[count], said[count]) for count in batches(context)}
    if context.on_cpu:
        wrong = [n for n in figures if any(figures[n][arm]["different"] for arm in ARMS[1:])]
        assert not wrong, f"a draft changes answers in batches of {wrong}"
