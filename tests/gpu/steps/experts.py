"""A decode step's time against distinct experts at a fixed batch, and against the batch at a fixed
number of distinct experts.

One worker. A batch of B requests is made of D different prompts, each asked B / D times: copies
decode the same tokens in step, so that few prompts load few experts. What a step really loaded is
in the worker's step log, and only that is used: steps of the whole batch, none of a prompt.

figures: `cells`, of each batch and number of prompts: `steps`, their median `step_ms` and
`distinct` (experts a MoE layer, mean); `fixed_batch`: of the largest batch, the time of the cell
with the most experts over that with the fewest, and that ratio of experts; `fixed_distinct`: pairs
of cells of different batches whose experts are within 10 % of each other, with the ratio of their
times; `fit`: milliseconds on requests and distinct experts (summed over layers), all steps.
Published (arXiv 2607.25026): 4.7 times from 16 to 128 experts.
"""

import asyncio
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from tests.e2e import calls
from tests.gpu.context import Context
from tests.gpu.listening import Steps, steps_of, whole_batch
from tests.gpu.model import scaled_up

PROMPT = 16
NEAR = 0.1


def grid(context: Context) -> list[tuple[int, int]]:
    """(batch, different prompts in it)."""
    batches = (4, 8) if context.tiny else (8, 16, 32, 64)
    return [(b, d) for b in batches for d in (1, 2, 4, 8, 16, 32, 64) if d <= b]


def described(context: Context) -> dict[str, Any]:
    most = max(batch for batch, _ in grid(context))
    # Copies must be prefilled, too, or each would come a step later than the one before.
    args = {"disable-radix-cache": True}
    worker = context.role(context.size(65536, 8192), most, args=args)
    return context.described(
        "experts", "plain", worker=worker, capture_experts=True, model=str(scaled_up(context))
    )


async def cell(
    context: Context, url: str, steps: Steps, batch: int, different: int
) -> dict[str, Any]:
    """One batch to its end, and what its steps took."""
    tokens = context.size(96, 12)
    prompts = [calls.prompt(f"experts-{batch}-{n % different}", PROMPT) for n in range(batch)]
    bodies = [calls.greedy(prompt, tokens, stream=False) for prompt in prompts]
    rows, _ = await whole_batch(url, steps, bodies)
    rows = rows[steps.distinct(rows) > 0]
    assert len(rows), f"no step of all {batch} requests has its experts"
    layers = rows.shape[1] - len(steps.tap.heard.columns)
    return {
        "batch": batch,
        "prompts": different,
        "steps": len(rows),
        "step_ms": statistics.median(steps.column(rows, "seconds")) * 1e3,
        "distinct": float(steps.distinct(rows).mean()) / layers,
        "rows": list(
            zip(
                steps.column(rows, "requests").tolist(),
                steps.distinct(rows).tolist(),
                steps.column(rows, "seconds").tolist(),
                strict=True,
            )
        ),
    }


def summed_up(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the cells say, without their rows."""
    import numpy as np

    from toolkit.profile.latency import fit

    most = max(each["batch"] for each in cells)
    whole = sorted((c for c in cells if c["batch"] == most), key=lambda c: c["distinct"])
    low, high = whole[0], whole[-1]
    pairs = [
        {
            "batches": [one["batch"], two["batch"]],
            "distinct": [one["distinct"], two["distinct"]],
            "time_ratio": two["step_ms"] / one["step_ms"],
        }
        for one, two in combinations(cells, 2)
        if one["batch"] != two["batch"]
        and abs(one["distinct"] - two["distinct"]) <= NEAR * one["distinct"]
    ]
    rows = np.array([row for each in cells for row in each["rows"]])
    features = np.column_stack([np.ones(len(rows)), rows[:, :2]])
    line = fit(("1", "requests", "distinct experts"), features, rows[:, 2] * 1e3)
    return {
        "fixed_batch": {
            "batch": most,
            "distinct_ratio": high["distinct"] / low["distinct"],
            "time_ratio": high["step_ms"] / low["step_ms"],
        },
        "fixed_distinct": pairs,
        "fit": line and {"terms": line.terms, "coefficients": line.coefficients,
                         "held_out_error": line.held_out_error},
    }  # fmt: skip


def measure(context: Context, figures: dict[str, Any]) -> None:
    async def main(url: str) -> list[dict[str, Any]]:
        async with steps_of(up, "worker-0") as steps:
            await cell(context, url, steps, *grid(context)[-1])  # graphs and kernels of that size
            return [await cell(context, url, steps, *each) for each in grid(context)]

    with context.deployed(described(context), "experts") as up, context.measuring("experts"):
        cells = asyncio.run(main(up.router_url))
    figures |= summed_up(cells)
    figures["cells"] = [{k: v for k, v in each.items() if k != "rows"} for each in cells]
