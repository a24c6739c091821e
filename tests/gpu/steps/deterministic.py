"""With `--enable-deterministic-inference`: does a stream that moves by replay say the same?

Two workers of the embedded model that prefill and decode both, with SGLang's flag and Triton's
attention. Streams, half
of them greedy and half of them sampled, are asked by themselves, then again, then beside others,
then moved to and fro by replay beside others: the KV of what they have said is then computed again
by the kernels of prompts.

figures: of `streams`, how many say something else than by themselves: `changed_repeat`,
`changed_beside`, `changed_moved` after `moves` moves (`outcomes`); `bits_beside` and
`bits_prefilled`: of `cuts`, how many answers of one worker have the same log probabilities to the
bit beside others, and behind a prompt that holds what was said so far. Fails where a stream
changes, or none moved.
"""

import asyncio
from collections import Counter
from typing import Any

from tests.benchmarks.migrate import use
from tests.e2e import calls
from tests.e2e.moving import migrate
from tests.gpu.context import Context
from toolkit.launch.running import Running

FLAG = "enable-deterministic-inference"


def described(context: Context) -> dict[str, Any]:
    """Without CUDA graphs, which take longer to capture than the step takes."""
    args: dict[str, Any] = {FLAG: True}
    if not context.on_cpu:
        args["disable-cuda-graph"] = True
    worker = context.role(context.size(65_536, 16_384), 16, replicas=2, args=args)
    return context.described("deterministic", "plain", worker=worker)


def body(context: Context, number: int) -> dict[str, Any]:
    """A stream; every second one is sampled, with the seed that SGLang gives to all."""
    prompt = calls.prompt(f"deterministic-{number}", context.size(500, 60) + 37 * (number % 10))
    found = calls.greedy(prompt, context.size(120, 40), stream=True)
    found["sampling_params"]["temperature"] = float(number % 2)
    return found


async def asked(http: Any, up: Running, bodies: list[dict[str, Any]]) -> list[list[int]]:
    """What they say, all at once."""
    answers = await asyncio.gather(*(calls.generate(http, up.router_url, each) for each in bodies))
    lost = [answer.error for answer in answers if answer.error]
    assert not lost, f"{len(lost)} of {len(bodies)} streams were lost: {lost[0]}"
    return [answer.ids for answer in answers]


async def moved(
    context: Context, http: Any, up: Running, number: int
) -> tuple[list[int], list[dict[str, Any]]]:
    """What one says that moves every so many tokens, and what became of each move."""
    every, count = context.size(30, 10), 0
    rid = f"deterministic-{number}"

    def seen(tokens: int) -> None:
        nonlocal count
        count = tokens

    own = body(context, number) | {"rid": rid}
    stream = asyncio.ensure_future(calls.generate(http, up.router_url, own, seen))
    told: list[dict[str, Any]] = []
    due = every
    while not stream.done():
        if count >= due:
            told += await migrate(http, up, rid=rid)
            due = count + every
        await asyncio.sleep(0.002)
    answer = await stream
    assert not answer.error, answer.error
    return answer.ids, told


async def compared(context: Context, up: Running, figures: dict[str, Any]) -> None:
    numbers = range(context.size(4, 2))
    others = [body(context, 100 + number) for number in range(context.size(5, 2))]
    async with calls.session() as http:
        await use(up, "replay")
        alone = [(await asked(http, up, [body(context, n)]))[0] for n in numbers]
        again = [(await asked(http, up, [body(context, n)]))[0] for n in numbers]
        beside = [(await asked(http, up, [body(context, n), *others]))[0] for n in numbers]
        found, outcomes = [], Counter[str]()
        for number in numbers:
            crowd = asyncio.ensure_future(asked(http, up, others))
            ids, told = await moved(context, http, up, number)
            await crowd
            found.append(ids)
            outcomes.update(move["outcome"] for move in told)
        figures |= {
            "streams": len(alone),
            "distinct": len({tuple(ids) for ids in alone}),
            "changed_repeat": _different(alone, again),
            "changed_beside": _different(alone, beside),
            "changed_moved": _different(alone, found),
            "moves": outcomes["moved"],
            "outcomes": dict(outcomes),
        }
        figures |= await _bits(context, http, str(up.workers[0].url), others)


def _different(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


async def _bits(
    context: Context, http: Any, url: str, others: list[dict[str, Any]]
) -> dict[str, int]:
    """Of one worker: its log probabilities, which JSON keeps to the bit."""
    whole_body = {**body(context, 200), "stream": False, "return_logprob": True}
    prompt, length = whole_body["input_ids"], whole_body["sampling_params"]["max_new_tokens"]

    async def post(each: dict[str, Any]) -> dict[str, Any]:
        async with http.post(f"{url}/generate", json={**each, "stream": False}) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    whole = await post(whole_body)
    told = _told(whole, length)
    cuts = [length * part // 5 for part in (1, 2, 3, 4)]
    same = Counter[str]()
    for cut in cuts:
        beside, *_ = await asyncio.gather(post(whole_body), *map(post, others))
        same["beside"] += _told(beside, length) == told
        async with http.post(f"{url}/flush_cache") as response:
            await response.read()
        left = length - cut
        own = {**whole_body["sampling_params"], "max_new_tokens": left}
        longer = [*prompt, *whole["output_ids"][:cut]]
        behind = await post({**whole_body, "input_ids": longer, "sampling_params": own})
        same["prefilled"] += _told(behind, left) == told[-left:]
    return {
        "cuts": len(cuts),
        "bits_beside": same["beside"],
        "bits_prefilled": same["prefilled"],
    }


def _told(answer: dict[str, Any], last: int) -> list[tuple[int, float]]:
    found = answer["meta_info"]["output_token_logprobs"]
    return [(token, value) for value, token, _ in found][-last:]


def measure(context: Context, figures: dict[str, Any]) -> None:
    deployment = context.deployed(described(context), "deterministic")
    with deployment as up, context.measuring("deterministic"):
        asyncio.run(compared(context, up, figures))
    assert figures["moves"], f"no stream moved: {figures['outcomes']}"
    assert figures["distinct"] > 1, "the model says the same to everything"
    for name in ("changed_repeat", "changed_beside", "changed_moved"):
        assert not figures[name], f"{name}: {figures[name]} of {figures['streams']}"
