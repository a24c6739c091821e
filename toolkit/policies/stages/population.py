"""The requests that decode at the same time, by length: what a partition is planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.policies.stages.qoe import Qoe, Sums

if TYPE_CHECKING:
    import numpy as np


def doubling(longest: int) -> list[int]:
    """Bounds of length buckets, 1, 2, 4 and so on, up to the first that holds `longest`."""
    bounds = [1]
    while bounds[-1] < longest:
        bounds.append(2 * bounds[-1])
    return bounds


@dataclass(frozen=True)
class Population:
    """Mean requests in flight on all instances by bucket of length.

    `bounds` [K]: bucket k holds lengths above bounds[k - 1] (0 for the first) up to bounds[k], in
    KV tokens. `requests`, `prompt`, `prompt_squares`, `kv` [K]: sums over each, see `Sums`.
    `longest` [K]: of each bucket, 0 where it is empty. `crossing` [K]: how many requests outgrow
    bounds[k] in a decode step.
    """

    bounds: tuple[int, ...]
    requests: np.ndarray
    prompt: np.ndarray
    prompt_squares: np.ndarray
    kv: np.ndarray
    longest: np.ndarray
    crossing: np.ndarray

    @property
    def in_flight(self) -> float:
        return float(self.requests.sum())

    def sums(self, low: int = 0, high: int | None = None) -> Sums:
        """Of the buckets from `low` up to before `high`; None: to the last."""
        part = slice(low, high)
        return Sums(
            float(self.requests[part].sum()),
            float(self.prompt[part].sum()),
            float(self.prompt_squares[part].sum()),
            float(self.kv[part].sum()),
            float(self.longest[part].max()),
        )


def of_answers(answers: Sequence[tuple[int, int]], in_flight: float) -> Population:
    """From the (prompt, output tokens) of requests, as a trace has them, when `in_flight` of them
    decode at a time. A request is that long as it is for one step a token: whoever says more is
    seen more often. ValueError: nobody says anything, or fewer than no tokens, or nobody in flight.
    """
    import numpy as np

    if not in_flight > 0:
        raise ValueError(f"stages are planned for requests in flight; {in_flight:g} are none")
    pairs = np.asarray([pair for pair in answers if pair[1] != 0], dtype=np.float64).reshape(-1, 2)
    if (pairs < 0).any():
        raise ValueError("a request has fewer than 0 tokens")
    if not len(pairs):
        raise ValueError("stages are planned for answers; these lengths have none")
    prompt, ends = pairs[:, 0], pairs.sum(axis=1)
    share = in_flight / pairs[:, 1].sum()
    bounds = doubling(int(ends.max()))
    columns: list[list[float]] = []
    below = 0
    for bound in bounds:
        low, high = np.maximum(prompt, below), np.minimum(ends, bound)
        steps = np.maximum(high - low, 0.0)
        inside = steps > 0
        columns.append(
            [
                steps.sum() * share,
                (steps * prompt).sum() * share,
                (steps * prompt**2).sum() * share,
                (steps * (low + high + 1) / 2).sum() * share,
                high[inside].max() if inside.any() else 0.0,
                ((prompt <= bound) & (ends > bound)).sum() * share,
            ]
        )
        below = bound
    return Population(tuple(bounds), *np.asarray(columns).T)


def of_live(live: Sequence[tuple[int, int]]) -> Population:
    """From the (prompt, KV tokens) of all requests that decode now. How many outgrow a bound in a
    step is guessed from those within a factor of two of it that began below it. ValueError: nobody.
    """
    import numpy as np

    if not live:
        raise ValueError("stages are planned for requests in flight; there are none")
    pairs = np.asarray(live, dtype=np.float64)
    prompt, length = pairs[:, 0], np.maximum(pairs[:, 1], 1.0)
    bounds = doubling(int(length.max()))
    bucket = np.searchsorted(bounds, length)
    size = len(bounds)

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(bucket, values, minlength=size)

    longest = np.zeros(size)
    np.maximum.at(longest, bucket, length)
    crossing = [
        ((prompt <= b) & (length > b / 2) & (length <= 2 * b)).sum() / (1.5 * b) for b in bounds
    ]
    one = np.ones(len(pairs))
    return Population(
        tuple(bounds),
        sums(one),
        sums(prompt),
        sums(prompt**2),
        sums(length),
        longest,
        np.asarray(crossing),
    )


def in_flight(answers: Sequence[tuple[int, int]], rate: float, instances: int, qoe: Qoe) -> float:
    """How many requests decode at a time when `rate` a second of such (prompt, output tokens) come
    to even instances: N = rate x output x Q(N / instances), by Little's law. ValueError: by the
    model so many come that the instances would never keep up."""
    one = of_answers(answers, 1.0).sums()
    constant, *slopes = qoe.coefficients
    per_request = sum(d * f for d, f in zip(slopes, one[:4], strict=True)) / instances
    tokens = rate * sum(output for _, output in answers) / len(answers)
    if tokens * per_request >= 1:
        raise ValueError(
            f"by its QoE model {instances} instances cannot keep up with {rate:.3g} requests/s of "
            f"these lengths: at most {rate / (tokens * per_request):.3g}. Say how many are in "
            "flight at a time, or plan for a slower trace"
        )
    return max(tokens * constant / (1 - tokens * per_request), 1.0)
