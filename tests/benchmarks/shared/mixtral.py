"""Mixtral-8x7B at 4 bits on one A100 of 80 GB, by data sheets, and lengths like ShareGPT's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

from toolkit.simulate.request import Request
from toolkit.simulate.workloads.classes import with_classes

if TYPE_CHECKING:
    import numpy as np

LAYERS = 32
BYTES = 22.93e9
"""Of the weights (QLLM, V, Models and Dataset)."""
EXPERT_SHARE = 0.966
"""Of the weights that are experts': 32 layers x 8 experts x 3 x 4096 x 14336 of 46.7e9 parameters
(Mixtral of Experts, arXiv 2401.04088)."""
EXPERTS, USED = 8, 2
KV_BYTES = 2 * LAYERS * 8 * 128 * 2
"""Of one token: 8 KV heads of 128 in FP16."""
FLOPS = 2 * 12.9e9
"""Of one token: 12.9e9 active parameters (ibid.)."""
PAIR_FLOPS = 4 * 4096 * LAYERS
"""Of attention between two tokens."""
BANDWIDTH = 0.7 * 1.935e12
"""Bytes a second: A100 80GB PCIe by its data sheet, of which 0.7 are had."""
COMPUTE = 0.4 * 312e12
"""FP16 operations a second by the same data sheet, of which 0.4 are had."""
KV_TOKENS = round((0.9 * 80e9 - BYTES) / KV_BYTES)
"""That fit beside the weights."""


class Lengths(NamedTuple):
    """Mean before the cut, standard deviation of the logarithm, tokens at most."""

    mean: float
    spread: float
    most: int


PROMPT = Lengths(161.31, 1.2, 1024)
ANSWER = Lengths(337.99, 0.9, 1024)
"""Means (ShareGPT, vLLM's paper, arXiv 2309.06180, figure 11), deviations (ours:
long tails), most (as vLLM's benchmark filters them; it lowers the means)."""


@dataclass(frozen=True)
class Steps:
    """A `CostModel`: what is read (weights of the experts that some token uses, KV) or what is
    computed, whichever takes longer, and `overhead` seconds of every pass. `per_slice`: of a look
    between two slices."""

    overhead: float
    per_slice: float = 0.0

    @property
    def prefill(self) -> Steps:
        """Where `toolkit.simulate.costs.per_slice_of` looks."""
        return self

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        return self._pass_s(int(requests.sum()), int(kv_tokens.sum()), 0.0)

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        tokens = sum(new for new, _ in parts)
        pairs = sum(new * (before + new / 2) for new, before in parts)
        return self._pass_s(tokens, sum(before for _, before in parts), pairs)

    def transfer_s(self, tokens: int) -> float:
        return 0.0  # one worker does both

    def join_s(self, requests: int) -> float:
        return 0.0

    def _pass_s(self, tokens: int, kv_tokens: int, pairs: float) -> float:
        touched = 1 - (1 - USED / EXPERTS) ** tokens
        weights = BYTES * (1 - EXPERT_SHARE + EXPERT_SHARE * touched)
        read = (weights + KV_BYTES * kv_tokens) / BANDWIDTH
        return self.overhead + max(read, (FLOPS * tokens + PAIR_FLOPS * pairs) / COMPUTE)


ROOFLINE = Steps(0.003)
"""Launches with CUDA graphs; a decode step of 32 requests takes 22 ms."""
PUBLISHED = Steps(0.295)
"""As the paper's: a single decode takes 0.3 s, a full batch 300 to 400 ms (QLLM, II-C and V)."""


def requests(
    count: int, rate: float, seed: int, urgent: float = 0.2, prompt: float = PROMPT.mean
) -> Iterator[Request]:
    """Poisson arrivals, `urgent` of them latency-sensitive and the others best-effort. `prompt`:
    mean tokens of best-effort ones, whose prompts are that much longer."""
    for request in with_classes(_arriving(count, rate, seed), urgent, seed):
        if request.best_effort:
            request.prompt = round(request.prompt * prompt / PROMPT.mean)
        yield request


def _arriving(count: int, rate: float, seed: int) -> Iterator[Request]:
    source = random.Random(f"mixtral-{seed}")
    now = 0.0
    for number in range(count):
        now += source.expovariate(1.0) / rate  # of one seed the same requests at every rate
        yield Request(number, now, _length(source, PROMPT), _length(source, ANSWER))


def _length(source: random.Random, lengths: Lengths) -> int:
    mean, spread, most = lengths
    drawn = exp(source.gauss(log(mean) - spread**2 / 2, spread))
    return min(most, max(1, round(drawn)))
