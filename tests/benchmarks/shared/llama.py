"""Llama-3.2-3B on an H20 by data sheets, and dialogues with a tail up to 128K tokens."""

import random
from collections.abc import Iterator
from functools import cache
from math import exp, log

from tests.benchmarks.shared.mixed_lengths import mixed_of
from toolkit.policies.stages.qoe import Qoe
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.request import Request

LAYERS, WIDTH = 28, 3072
PARAMETERS = 3.21e9
"""Of Llama-3.2-3B, with 8 KV heads of 128 (its model card and config.json)."""
WEIGHTS = 2 * PARAMETERS
KV_BYTES = 2 * LAYERS * 8 * 128 * 2
"""Of one token: FP16, as CascadeInfer serves it (6.1)."""
MEMORY = 141e9
"""Of the paper's H20 (6.1)."""
BANDWIDTH = 0.7 * 4.0e12
"""Bytes a second: H20 by its data sheet, of which 0.7 are had."""
COMPUTE = 0.8 * 148e12
"""FP16 operations a second by the same sheet, of which 0.8 are had: that GPU has much memory
bandwidth for its operations, so that they keep it busy."""
LINE = 0.8 * 50e9
"""Bytes a second: 400 Gb/s (6.1), of which 0.8 are had."""
OVERHEAD = 0.003
"""Seconds of a step for launches and the scheduler."""
KV_TOKENS = round((0.9 * MEMORY - WEIGHTS) / KV_BYTES)
"""That fit beside the weights."""
SLOTS, CHUNK = 1024, 8192
"""Requests at a time, as the paper caps them, and tokens of a pass: vLLM's defaults there."""

LONGEST = 131_072
PROMPT, ANSWER = (161.31, 1.2), (337.99, 0.9)
"""Mean, standard deviation of the logarithm: ShareGPT by vLLM's paper (arXiv 2309.06180, figure
11), deviations ours."""
TAIL, FROM = 0.002, 2048
"""So many prompts are long ones, from so many tokens on, twice as long half as many, up to LONGEST:
the share is ours; the paper shows its lengths in a figure only."""
BATCH = 512
"""Requests of a batch of which attention takes 1.1 to 2.1 times as long if it is mixed (figure 2).
"""


def lengths(seed: int) -> Iterator[tuple[int, int]]:
    """(prompt, answer), without end."""
    source = random.Random(f"llama-{seed}")
    while True:
        if source.random() < TAIL:
            # Density 1 / x^2 between the two.
            prompt = round(1 / (1 / FROM - source.random() * (1 / FROM - 1 / LONGEST)))
        else:
            prompt = _drawn(source, *PROMPT)
        answer = max(2, _drawn(source, *ANSWER))
        if prompt + answer <= LONGEST:  # longer ones are discarded (figure 1)
            yield prompt, answer


def requests(rate: float, seconds: float, seed: int) -> Iterator[Request]:
    """Poisson arrivals; of one seed the same requests at every rate."""
    source = random.Random(f"llama-arrivals-{seed}")
    now = 0.0
    for number, (prompt, answer) in enumerate(lengths(seed)):
        now += source.expovariate(1.0) / rate
        if now > seconds:
            return
        yield Request(number, now, prompt, answer)


def cost(penalty: float = 1.0) -> Linear:
    """What is read and what is computed, one after the other, and a constant. `penalty`: attention
    over a batch of `BATCH` of these requests takes so many times as long as over even ones, and no
    batch's takes longer (1: lengths do not matter)."""
    kv = KV_BYTES / BANDWIDTH
    mixed = mixed_of(penalty, kv, live(BATCH)) if penalty > 1 else 0.0
    return Linear(
        decode=Decode(
            base=OVERHEAD + WEIGHTS / BANDWIDTH,
            per_request=2 * PARAMETERS / COMPUTE,
            per_kv_token=kv,
            mixed=mixed,
            mixed_most=max(0.0, penalty - 1),
        ),
        prefill=Prefill(
            base=OVERHEAD,
            per_token=2 * PARAMETERS / COMPUTE,
            per_pair=4 * WIDTH * LAYERS / COMPUTE,
        ),
        transfer=TransferCost(base=0.001, per_token=KV_BYTES / LINE),
    )


@cache
def live(count: int) -> tuple[int, ...]:
    """KV tokens of `count` requests in flight, each at some step of its answer: who says more is
    seen more often. Of 25 such batches the one whose longest is the median."""
    batches = []
    for seed in range(25):
        source = random.Random(f"llama-live-{seed}")
        drawn = lengths(1000 + seed)
        pairs = [next(drawn) for _ in range(10 * count)]
        seen = source.choices(pairs, weights=[answer for _, answer in pairs], k=count)
        batches.append(tuple(prompt + source.randint(1, answer) for prompt, answer in seen))
    return sorted(batches, key=max)[len(batches) // 2]


def qoe(plain: bool, mixed: float = 0.0) -> Qoe:
    """CascadeInfer's model (4.1) by the same figures: D_0, D_1, D_4 of a step; D_2 and D_3 of the
    prefills, where a worker does them, each spread over the tokens of a mean answer."""
    steps = cost()
    decode, prefill = steps.decode, steps.prefill
    share = 1 / ANSWER[0] if plain else 0.0
    return Qoe(
        (
            decode.base,
            decode.per_request,
            share * prefill.per_token,
            share * prefill.per_pair / 2,
            decode.per_kv_token,
        ),
        mixed,
    )


def _drawn(source: random.Random, mean: float, spread: float) -> int:
    return max(1, round(exp(source.gauss(log(mean) - spread**2 / 2, spread))))
