"""What the signature hook costs a prefill, prompts of 1,000 to 32,000 tokens.

Two prefill workers side by side, both with SGLang's own capturer of routed experts; one keeps
signatures of every layer, the other does not. A prefill worker needs no decode worker to finish a
prompt: it parks its KV, and the request is aborted when the worker has said so. Each prompt is sent
to both with other tokens, alone, the order alternating. A prompt is one chunk, so that it is one
step; its time is from the worker's own step log. Besides, without any server, the hook's work alone
on the device (`tests.benchmarks.signature`): 48 layers, 8 of 128 experts.

figures: of each length `without_ms`, `with_ms` (medians), the `ratio` with / without (paired, with
its 95 % interval), and `complete`, how many signatures of the whole prompt came of how many;
`alone` of each length: `record_ms`, what the scheduler's thread spends, and `whole_ms`, until the
counts are on the host. Fails where a signature is missing or not of the whole prompt.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from tests.benchmarks.shared.common import percentile
from tests.e2e import calls
from tests.e2e.workers import events
from tests.gpu import servers
from tests.gpu.context import Context
from tests.gpu.listening import Steps, steps_at
from tests.gpu.model import SCALED_UP, TINY, scaled_up
from toolkit.bench.stats import paired_ratio
from toolkit.contract.variables import LAYERS_VARIABLE

SIDES = ("without", "with")
BLOCK_S = 0.3
"""A little longer than workers keep rows of steps to themselves."""


def lengths(context: Context) -> tuple[int, ...]:
    return (256, 1024) if context.tiny else (1024, 2048, 4096, 8192, 16_384, 32_000)


def described(context: Context, side: str) -> dict[str, Any]:
    size = TINY if context.tiny else SCALED_UP
    pool = 2 * max(lengths(context)) + 4096
    chunk = {"chunked-prefill-size": max(lengths(context)) + 512, "disable-radix-cache": True}
    layers = ",".join(map(str, range(size.num_hidden_layers)))
    signs = {"env": {LAYERS_VARIABLE: layers}} if side == "with" else {}
    return context.described(
        f"signature-{side}",
        "pd",
        model=str(scaled_up(context)),
        capture_experts=True,
        prefill=context.role(pool, 8, args=chunk, **signs),
        decode=context.role(pool, 8),
    )


class Prefill:
    """A client of one prefill worker."""

    def __init__(self, url: str, steps: Steps, http: Any, events: Any) -> None:
        self._url, self._steps, self._http, self._events = url, steps, http, events
        self._room = 0

    async def prefilled(self, name: str, length: int) -> Any:
        """The signature that came, or None."""
        return await self._run(calls.prompt(name, length))

    async def seconds(self, length: int) -> list[float]:
        """Of each step of so many new tokens since the last call, in the order they came."""
        # A worker whose requests are all parked says its steps with the next one.
        await asyncio.sleep(BLOCK_S)
        await self._run(calls.prompt(f"after-{length}", 8))
        rows = await self._steps.taken()
        rows = rows[self._steps.column(rows, "new_tokens") == length]
        return [float(value) for value in self._steps.column(rows, "seconds")]

    async def _run(self, ids: list[int]) -> Any:
        self._room += 1
        rid = f"room-{self._room}"
        body = calls.greedy(ids, 4, stream=False) | {"rid": rid, "bootstrap_room": self._room}
        post = asyncio.create_task(calls.generate(self._http, self._url, body))
        signature = await self._done(rid)
        async with self._http.post(self._url + "/abort_request", json={"rid": rid}) as answer:
            assert answer.status == 200
        await post
        return signature

    async def _done(self, rid: str) -> Any:
        async with asyncio.timeout(calls.WAIT_LIMIT_S):
            async for event in self._events:
                if event["type"] == "prefill_done" and event["rid"] == rid:
                    return event.get("signature")
        raise AssertionError("the worker's events ended")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Prefill]:
    async with steps_at(url) as steps, calls.session() as http, events(url) as lines:
        yield Prefill(url, steps, http, lines)


async def at(context: Context, sides: dict[str, Prefill], length: int) -> dict[str, Any]:
    rounds, came, complete = context.size(6, 2), 0, 0
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            said = await sides[side].prefilled(f"{side}-{length}-{number}", length)
            if side == "with":
                came += 1
                complete += bool(said and said["complete"] and said["tokens"] == length)
            assert side == "with" or not said, "the other worker makes signatures, too"
    took: dict[str, list[float]] = {}
    for side in SIDES:
        steps = await sides[side].seconds(length)
        assert len(steps) == rounds + 1, (
            f"{len(steps)} steps of {length} tokens for {rounds + 1} prompts: each is one chunk"
        )
        took[side] = steps[1:]  # the first is for kernels of that size
    found: dict[str, Any] = {f"{s}_ms": statistics.median(took[s]) * 1e3 for s in SIDES}
    found |= paired_ratio(took["with"], took["without"]).keys("ratio")
    return found | {"complete": f"{complete} of {came}"}


def alone(context: Context, length: int) -> dict[str, float]:
    """The hook's own work, no server around it."""
    from tests.benchmarks import signature as hook

    case = hook.Case(length, list(range(hook.LAYERS)), context.device)
    assert case.ours() == case.other(), "the device counts other experts than numpy"
    rounds = context.size(50, 3)
    whole = [hook.timed(case.ours, context.device) for _ in range(rounds)]
    thread = [hook.on_thread(case) for _ in range(rounds)]
    return {"whole_ms": percentile(whole, 50), "record_ms": percentile(thread, 50)}


def measure(context: Context, figures: dict[str, Any]) -> None:
    async def main(urls: dict[str, str]) -> None:
        async with AsyncExitStack() as stack:
            sides = {
                side: await stack.enter_async_context(connected(url)) for side, url in urls.items()
            }
            for length in lengths(context):
                figures[str(length)] = await at(context, sides, length)

    with ExitStack() as stack:
        sides = {
            side: servers.alone(context, described(context, side), f"signature-{side}", "prefill-0")
            for side in SIDES
        }
        urls = servers.abreast(stack, sides)
        stack.enter_context(context.measuring("signature"))
        figures["alone"] = {str(length): alone(context, length) for length in lengths(context)}
        asyncio.run(main(urls))
    lacking = [length for length in lengths(context) if _lacks(figures[str(length)]["complete"])]
    assert not lacking, f"signatures of {lacking} tokens are missing or not of the whole prompt"


def _lacks(complete: str) -> bool:
    there, _, wanted = complete.partition(" of ")
    return there != wanted
