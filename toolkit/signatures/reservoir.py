"""A bounded sample of the requests that came by, biased towards the latest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Floats, Indices

_WIDE = 2**16 - 0.5
"""A count from which on two bytes are too few; what is scaled by an old worker is not whole."""


@dataclass(frozen=True, eq=False)
class Recent:
    """n requests: prefill `counts` [n, D] (whole numbers of any type) and prompt `tokens` [n].

    `counts[i]` are tokens of the prompt whose top-k had the expert, D being the kept layers,
    ascending, times the experts. `ages` [n]: how many requests came after it; None: not known,
    rows are oldest first. ValueError: shapes that do not fit.
    """

    counts: NDArray[Any]
    tokens: NDArray[Any]
    ages: Indices | None = None

    def __post_init__(self) -> None:
        if self.counts.ndim != 2:
            raise ValueError(f"recent counts have shape {self.counts.shape}, expected [n, D]")
        for name in ("tokens", "ages"):
            column = getattr(self, name)
            if column is not None and column.shape != self.counts.shape[:1]:
                raise ValueError(
                    f"recent {name} have shape {column.shape}, expected ({len(self)},): one number"
                    " for each request"
                )

    def __len__(self) -> int:
        return len(self.counts)

    def values(self, rows: Indices | slice = slice(None)) -> Floats:
        """[len(rows), D] float32: tokens of the prompt whose top-k had the expert."""
        return self.counts[rows].astype(np.float32)

    def oldest_first(self) -> Recent:
        """The same requests in the order of their arrival."""
        if self.ages is None or (np.diff(self.ages) <= 0).all():
            return self
        order = np.argsort(-self.ages, kind="stable")
        return Recent(self.counts[order], self.tokens[order], self.ages[order])


class Reservoir:
    """At most `size` requests; once full, each newcomer replaces a random one.

    A request is then still here after `a` more with probability (1 - 1 / size)^a: ages are
    geometric with mean `size` (nearly exponential), whatever the traffic's rate, with no clock.
    Before that all are kept. Source: C. Aggarwal, "On biased reservoir sampling in the presence
    of stream evolution", VLDB 2006, algorithm 2.1 (which also replaces while it fills; filling
    first wastes no room).

    Memory: size * (2 * D + 16) bytes, 6 MB for 512 requests of 48 x 128, and twice that from the
    first count beyond 65,535 on. Counts are kept as they come over the wire
    (`toolkit.signatures.wire`), none scaled: a rare expert of a long prompt would become zero.
    The same seed keeps the same requests.
    ValueError: a size below 1, no dimensions.
    """

    def __init__(self, dimensions: int, size: int, seed: int = 0) -> None:
        if dimensions < 1 or size < 1:
            raise ValueError(f"a reservoir of {size} requests of {dimensions} values: at least 1")
        self._counts = np.zeros((size, dimensions), dtype=np.uint16)
        self._tokens = np.zeros(size, dtype=np.int64)
        self._arrivals = np.zeros(size, dtype=np.int64)
        self._random = np.random.default_rng(seed)
        self.seen = 0

    def __len__(self) -> int:
        return min(self.seen, len(self._counts))

    def add(self, counts: NDArray[Any], tokens: int) -> None:
        """One request's counts [D], whole numbers up to 2^24; others are rounded.

        ValueError: another length, negative or NaN counts, no tokens; nothing is added then.
        """
        if counts.shape != self._counts.shape[1:]:
            raise ValueError(
                f"counts have shape {counts.shape}, expected {self._counts.shape[1:]}: "
                "one request's counts of the kept layers"
            )
        largest = float(counts.max())
        if not (counts.min() >= 0 and largest < np.inf):
            raise ValueError("counts are negative, NaN or infinite: they must be numbers of tokens")
        if tokens < 1:
            raise ValueError(f"tokens = {tokens}: a prompt has at least one")
        full = self.seen >= len(self._counts)
        slot = int(self._random.integers(len(self._counts))) if full else self.seen
        if largest >= _WIDE and self._counts.dtype == np.uint16:
            self._counts = self._counts.astype(np.float32)
        self._counts[slot] = np.rint(counts)
        self._tokens[slot] = tokens
        self._arrivals[slot] = self.seen
        self.seen += 1

    def recent(self) -> Recent:
        """A copy, oldest first: what arrives later does not change it."""
        ages = self.seen - 1 - self._arrivals[: len(self)]
        order = np.argsort(-ages, kind="stable")
        return Recent(self._counts[order], self._tokens[order], ages[order])
