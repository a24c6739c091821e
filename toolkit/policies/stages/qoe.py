"""CascadeInfer's QoE model: how long an output token of a batch takes its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple

from toolkit.profile_folder.schema import Latency, LinearFit

TERMS = 5
MIXED_MOST = 1.1
"""Attention over mixed lengths was measured at up to 2.1 times its time over even ones of the same
total (CascadeInfer, section 2.3)."""


class Sums(NamedTuple):
    """A batch: its requests, the sums of their prompts' tokens, of these squared and of their KV
    tokens (prompt and output so far), and the KV tokens of its longest. Fractions are fine: a batch
    may be a mean one."""

    requests: float
    prompt: float
    prompt_squares: float
    kv: float
    longest: float

    def over(self, instances: int) -> Sums:
        """The batch of each of so many instances that share this one evenly."""
        return self.times(1 / instances)

    def times(self, factor: float) -> Sums:
        """So many times the requests, of the same lengths."""
        return Sums(
            factor * self.requests,
            factor * self.prompt,
            factor * self.prompt_squares,
            factor * self.kv,
            self.longest,
        )

    @classmethod
    def of(cls, batch: Sequence[tuple[int, int]]) -> Sums:
        """From the (prompt, KV tokens) of each request."""
        return cls(
            len(batch),
            sum(prompt for prompt, _ in batch),
            sum(prompt * prompt for prompt, _ in batch),
            sum(length for _, length in batch),
            max((length for _, length in batch), default=0),
        )


@dataclass(frozen=True, slots=True)
class Qoe:
    """Q = D_0 + D_1 n + D_2 sum I + D_3 sum I^2 + D_4 sum L, in seconds by output token of each
    of a batch's n requests with prompts I and KV tokens L; Q^B = n Q is the sum over all of them.

    `mixed` (*ours*): seconds for each KV token by which the longest request is above the mean, in
    all `mixed_most` times D_4 sum L at most. The published model is additive: without `mixed` it
    cannot know that a mixed batch is slower than an even one of the same total.

    ValueError: not five coefficients, one that is not finite, or one below zero, with which a
    batch would get faster by getting larger. Source: CascadeInfer, section 4.1.
    """

    coefficients: tuple[float, ...]
    mixed: float = 0.0
    mixed_most: float = MIXED_MOST

    def __post_init__(self) -> None:
        if len(self.coefficients) != TERMS:
            raise ValueError(f"QoE has {TERMS} coefficients, not {len(self.coefficients)}")
        for place, value in enumerate((*self.coefficients, self.mixed, self.mixed_most)):
            name = f"D_{place}" if place < TERMS else ("mixed", "mixed_most")[place - TERMS]
            if not isfinite(value):
                raise ValueError(f"QoE: {name} is {value}")
            if value < 0:
                raise ValueError(
                    f"QoE: {name} is {value:g}, below zero: by it a larger batch would be faster, "
                    "and no stage could be planned. Take `qoe` of a profile, not `qoe_published`; "
                    "where `qoe` itself is below zero the profile is of an older version, which "
                    "did not mind: measure it again"
                )

    @classmethod
    def of_fit(cls, fit: LinearFit, mixed: float = 0.0) -> Qoe:
        """From one of a profile's fits. ValueError: as the class."""
        return cls(fit.coefficients, mixed)

    @classmethod
    def of_profile(cls, latency: Latency, published: bool = False, mixed: float = 0.0) -> Qoe:
        """From a profile's latency models. ValueError: it has no such fit, or as the class."""
        fit = latency.qoe_published if published else latency.qoe
        if fit is None:
            note = f": {latency.note}" if latency.note else ""
            raise ValueError(
                f"this profile has no QoE fit{note}; make one with more requests "
                "(`toolkit profile` fits it from 30 on)"
            )
        return cls.of_fit(fit, mixed)

    def with_mixed(self, mixed: float) -> Qoe:
        return replace(self, mixed=mixed)

    def token_s(self, sums: Sums) -> float:
        """Q: seconds by output token of every request of a batch; 0 for an empty one."""
        if not sums.requests:
            return 0.0
        d = self.coefficients
        even = d[0] + d[1] * sums.requests + d[2] * sums.prompt + d[3] * sums.prompt_squares
        attention = d[4] * sums.kv
        above = sums.longest - sums.kv / sums.requests
        return even + attention + min(self.mixed * above, self.mixed_most * attention)

    def batch_s(self, sums: Sums) -> float:
        """Q^B: the same summed over the batch's requests."""
        return sums.requests * self.token_s(sums)

    def batch(self, batch: Sequence[tuple[int, int]]) -> float:
        """Q^B from the (prompt, KV tokens) of each request."""
        return self.batch_s(Sums.of(batch))

    @property
    def minds_lengths(self) -> bool:
        """Whether lengths matter at all."""
        return any(value > 0 for value in (*self.coefficients[2:], self.mixed))
