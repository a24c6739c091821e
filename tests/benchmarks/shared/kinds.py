"""Prompt and answer lengths as people send them: three kinds of traffic, long tails, users.

Lognormal, with medians and spreads fitted to the quartiles and the 95th percentiles of public
traces: Mooncake's conversation (arXiv 2407.00079), Azure's LLM inference trace 2023 *code*
(Splitwise, arXiv 2311.18677), and arXiv summarization as in Vidur (arXiv 2405.05465).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from toolkit.bench.errors import BenchError
from toolkit.bench.traces import TraceRow

USERS = 8
"""Of each kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`prompt` and `answer` are (median in tokens, standard deviation of the logarithm)."""

    name: str
    share: float
    prompt: tuple[float, float]
    answer: tuple[float, float]


KINDS = (
    Kind("conversation", 0.5, (6900.0, 1.15), (350.0, 0.6)),
    Kind("code", 0.3, (1470.0, 1.0), (13.0, 0.9)),
    Kind("summary", 0.2, (2700.0, 0.4), (170.0, 0.8)),
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: tokens, and who sent it ("" where nobody knows)."""

    prompt: int
    answer: int
    user: str = ""


def draw(count: int, seed: int) -> list[Lengths]:
    """`count` requests of KINDS, unscaled."""
    source = random.Random(f"kinds-{seed}")
    cumulative = list(accumulate(kind.share for kind in KINDS))
    found = []
    for _ in range(count):
        kind = source.choices(KINDS, cum_weights=cumulative)[0]
        prompt, answer = (
            max(1, round(median * source.lognormvariate(0.0, spread)))
            for median, spread in (kind.prompt, kind.answer)
        )
        found.append(Lengths(prompt, answer, f"{kind.name}-{source.randrange(USERS)}"))
    return found


def of_trace(rows: Sequence[TraceRow], count: int, seed: int) -> list[Lengths]:
    """`count` consecutive requests of a trace, from a place that depends on the seed; round and
    round where it has fewer."""
    start = random.Random(f"trace-{seed}").randrange(len(rows))
    picked = (rows[(start + n) % len(rows)] for n in range(count))
    return [Lengths(row.input_tokens, row.output_tokens) for row in picked]


def scaled(
    lengths: Sequence[Lengths], prompt: float, answer: float, longest: tuple[int, int]
) -> list[Lengths]:
    """All prompts by one factor and all answers by another, so that their means are these, then cut
    to the `longest`; the shape of the mix stays. An answer has 2 tokens at least: one of 1 is over
    with its prefill. BenchError: means that are no lengths."""
    if not lengths or min(prompt, answer, *longest) < 2:
        raise BenchError("lengths can be scaled to means and limits of 2 tokens or more")
    by_prompt = prompt * len(lengths) / sum(each.prompt for each in lengths)
    by_answer = answer * len(lengths) / sum(each.answer for each in lengths)
    return [
        Lengths(
            min(max(1, round(each.prompt * by_prompt)), longest[0]),
            min(max(2, round(each.answer * by_answer)), longest[1]),
            each.user,
        )
        for each in lengths
    ]
