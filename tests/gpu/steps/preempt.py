"""What it costs a long prompt that it can be stopped between layers, and what it gains others.

One worker that prefills and decodes, side by side with the same one whose prompts cannot be
stopped; both without the overlap scheduler and without CUDA graphs of prefill, as `preempt` wants.
Long best-effort prompts alone, in turns; then a short prompt in a hurry in the middle of each.

figures: `off_ms`, `on_ms`: TTFT of the long prompt; `ratio` on / off, paired, with its 95 %
interval; `slice_ms`, the difference by layer boundary; `hurry_off_ms`, `hurry_on_ms`: TTFT of the
short prompt, and its `hurry_ratio`; `stopped`, how many long prompts had their first token after
the short one that came in their middle. Fails where none was stopped, or where a long
prompt that was stopped has another first token (on a CPU: any other token) than one that was not:
later ones come from batches of another make-up, by which a GPU's sums differ.
"""

import asyncio
import json
import statistics
import time
from contextlib import ExitStack
from typing import Any

from tests.e2e import calls
from tests.gpu import servers
from tests.gpu.context import Context
from tests.gpu.model import SCALED_UP, scaled_up
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.runner import new_session
from toolkit.bench.stats import paired_ratio
from toolkit.bench.workload import Item
from toolkit.contract.request_class import RequestClass
from toolkit.embedded import model_path

LS, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT
SIDES = ("off", "on")
TOKENS = 4


def long(context: Context) -> int:
    return context.size(24_576, 2048)


def model_of(context: Context) -> str:
    """Tiny: the embedded one, as two layers have one boundary only."""
    return "embedded" if context.tiny else str(scaled_up(context))


def layers(context: Context) -> int:
    if not context.tiny:
        return SCALED_UP.num_hidden_layers
    return int(json.loads((model_path() / "config.json").read_text())["num_hidden_layers"])


def described(context: Context, side: str) -> dict[str, Any]:
    args: dict[str, Any] = {
        "chunked-prefill-size": long(context) + 512,
        "disable-radix-cache": True,
        "disable-overlap-schedule": True,
    }
    if not context.on_cpu:
        args["disable-prefill-cuda-graph"] = True
    stops = {"preempt": "strict"} if side == "on" else {}
    if stops:  # the launcher sets those two itself
        args = {key: value for key, value in args.items() if not key.startswith("disable-o")}
        args.pop("disable-prefill-cuda-graph", None)
    worker = context.role(2 * long(context) + 4096, 16, args=args, **stops)
    return context.described(
        f"preempt-{side}",
        "plain",
        model=model_of(context),
        worker=worker,
        capture_experts=True,
        router={"kind": "toolkit", "classes": {}},
    )


async def asked(session: Any, url: str, name: str, length: int, kind: RequestClass) -> Sample:
    item = Item(tuple(calls.prompt(name, length)), TOKENS, kind=kind.value)
    body = payload("generate", "", item, True)
    sample = await send(session, url, "generate", body, request_class=item.request_class)
    assert sample.success, sample.error
    return sample


async def alone(context: Context, session: Any, urls: dict[str, str]) -> dict[str, Any]:
    """TTFT of the long prompt by itself: no latency-sensitive request waits."""
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(context.size(10, 2) + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            sample = await asked(session, urls[side], f"alone-{number}", long(context), BE)
            if number:  # the first is for kernels of that size
                took[side].append(sample.ttft)
    found: dict[str, Any] = {f"{side}_ms": statistics.median(took[side]) * 1e3 for side in SIDES}
    found |= paired_ratio(took["on"], took["off"]).keys("ratio")
    return found | {"slice_ms": (found["on_ms"] - found["off_ms"]) / (layers(context) - 1)}


async def hurried(
    context: Context, session: Any, urls: dict[str, str], takes_s: float
) -> dict[str, Any]:
    """A short prompt in the middle of each long one. The same prompts on both sides."""
    ttft: dict[str, list[float]] = {side: [] for side in SIDES}
    said: dict[str, list[tuple[int, ...]]] = {side: [] for side in SIDES}
    stopped = 0
    for number in range(context.size(10, 2)):
        for side in SIDES if number % 2 else SIDES[::-1]:
            url, begin = urls[side], time.perf_counter()
            effort = asyncio.create_task(asked(session, url, f"effort-{number}", long(context), BE))
            await asyncio.sleep(takes_s * 0.3)
            sent = time.perf_counter()
            latency_sensitive = await asked(session, url, f"hurry-{number}", 64, LS)
            whole = await effort
            ttft[side].append(latency_sensitive.ttft)
            said[side].append(whole.output_ids[: None if context.on_cpu else 1])
            stopped += side == "on" and begin + whole.ttft > sent + latency_sensitive.ttft
    different = sum(a != b for a, b in zip(said["on"], said["off"], strict=True))
    found: dict[str, Any] = {
        f"hurry_{side}_ms": statistics.median(ttft[side]) * 1e3 for side in SIDES
    }
    found |= paired_ratio(ttft["on"], ttft["off"]).keys("hurry_ratio")
    return found | {"stopped": stopped, "long_prompts": len(said["on"]), "different": different}


def measure(context: Context, figures: dict[str, Any]) -> None:
    async def main(urls: dict[str, str]) -> None:
        async with new_session(300.0) as session:
            figures.update(await alone(context, session, urls))
            takes_s = figures["off_ms"] / 1e3
            figures.update(await hurried(context, session, urls, takes_s))

    with ExitStack() as stack:
        sides = {
            side: context.deployed(described(context, side), f"preempt-{side}") for side in SIDES
        }
        ups = servers.abreast(stack, sides)
        stack.enter_context(context.measuring("preempt"))
        asyncio.run(main({side: up.router_url for side, up in ups.items()}))
    assert figures["stopped"], "no long prompt was stopped for a latency-sensitive request"
    assert not figures["different"], f"{figures['different']} stopped prompts say something else"
