"""What decode workers tell of their steps, made up."""

import numpy as np

from patches.steps import request_times
from patches.steps.step_log import FIELDS
from toolkit.bench.decode import DecodeSteps, RankSteps


def step(batch: int, *distinct: float, **more: float) -> list[float]:
    """A decode row: 20 ms by the wall, 8 ms of CPU, 50 KV tokens a request."""
    named = {"decode": 1.0, "requests": batch, "new_tokens": batch, "kv_tokens": 50 * batch, **more}
    named = {"seconds": 0.02, "cpu_seconds": 0.008} | named
    return [*(named.get(name, 0.0) for name in FIELDS), *distinct]


def done(tokens: int, seconds: float, cpu: float, end: float = 0.0) -> list[float]:
    return [end, float(tokens), seconds, cpu, 9.0, float(tokens - 2)]


def rank(name: str, steps: list[list[float]], finished: list[list[float]]) -> RankSteps:
    width = len(steps[0]) if steps else 0
    return RankSteps(
        name,
        np.array(steps, dtype=float).reshape(len(steps), width),
        np.array(finished, dtype=float).reshape(-1, len(request_times.FIELDS)),
    )


def decode(*ranks: RankSteps, clock: str = "cpu") -> DecodeSteps:
    return DecodeSteps(ranks, FIELDS, request_times.FIELDS, clock)
