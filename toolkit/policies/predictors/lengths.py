"""Empirical distributions of output lengths, learned online, for thousands of ages at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from toolkit.policies.predictors.base import LONGEST, Flight
from toolkit.policies.predictors.outlook import Outlook

if TYPE_CHECKING:
    import numpy as np

MEMORY = 2000.0
PRIOR = 1.0
GROWTH = 1.04
STALE = 0.05
GROUP = 6


@cache
def edges() -> np.ndarray:
    """Bounds of the bins, tokens [B + 1]: bin k holds lengths in (edges[k], edges[k + 1]]. One
    token wide up to 37, then 4 % wider each: 246 bins to 131,072 tokens."""
    import numpy as np

    bounds = [0]
    while bounds[-1] < LONGEST:
        bounds.append(min(LONGEST, max(bounds[-1] + 1, round(bounds[-1] * GROWTH))))
    return np.array(bounds, dtype=np.int64)


@cache
def bin_of() -> np.ndarray:
    """The k with edges[k] <= tokens < edges[k + 1], for tokens 0..LONGEST [LONGEST + 1]."""
    import numpy as np

    found = np.searchsorted(edges(), np.arange(LONGEST + 1), side="right") - 1
    return np.minimum(found, len(edges()) - 2).astype(np.int64)


@cache
def _inside() -> np.ndarray:
    """Tokens beyond the bin's lower edge [LONGEST + 1]."""
    import numpy as np

    result: np.ndarray = np.arange(LONGEST + 1) - edges()[bin_of()].astype(np.float64)
    return result


@cache
def ignorance() -> np.ndarray:
    """A distribution over the bins [B] that prefers no order of magnitude."""
    import numpy as np

    mass = np.diff(np.log1p(edges().astype(np.float64)))
    result: np.ndarray = mass / mass.sum()
    return result


class Lengths:
    """`rows` distributions of output lengths.

    Formula: Kaplan and Meier over bins k, e = requests that ended there, n = those that got there,

        S_k+1 = S_k * (1 - e_k / n_k),   P(length > x) interpolated inside a bin

    so that a request that was cut off at some length counts as one that got there, not as one that
    ended (*ours*; without cut-offs it is the paper's plain empirical distribution). A prior of
    `weight` requests is mixed in: beyond all data it decides, and S never reaches 0. With r steps
    to go at age a, and limit - a the steps after which it is cut off in any case,

        p_fin = P(r <= H),  c = E min(r, H) = sum_{j < H} P(length > a + j | length > a)

    Memory: 5 x (B + 1) values a row. Past `memory` requests a row's counts are halved: it follows
    what changes. Tables are made again when counts have grown by 5 %, so learning costs little.
    """

    def __init__(self, rows: int, memory: float = MEMORY) -> None:
        import numpy as np

        if rows < 1 or not memory >= 1:
            raise ValueError(f"{rows} rows that remember {memory:g} requests: at least 1 each")
        bins = len(edges()) - 1
        self.memory = memory
        self.seen = np.zeros(rows, dtype=np.float64)
        """Requests in each row, halvings included."""
        self._fitted = np.full(rows, -1.0)
        self._ended = np.zeros((rows, bins))
        self._cut = np.zeros((rows, bins))
        tables = np.zeros((3, rows, bins + 1))
        self._alive, self._area, self._slope = tables
        self._tables = tables.reshape(3, -1)
        """The three side by side, to look all up at once."""
        for row in range(rows):
            self._tabulate(row, ignorance(), PRIOR)

    def learn(self, rows: Sequence[int], length: int, by_itself: bool) -> None:
        """A request of these rows, each another, has generated `length` tokens; see
        `Predictor.ended`."""
        length = min(max(length, 0), LONGEST)
        learned = self._ended if by_itself else self._cut
        place = bin_of()[max(length - 1, 0) if by_itself else length]
        seen = self.seen
        for row in rows:  # a few: sooner than numpy's
            learned[row, place] += 1
            seen[row] += 1
            if seen[row] > self.memory:
                for counts in (self._ended, self._cut, seen, self._fitted):
                    counts[row] *= 0.5

    def forget(self, row: int) -> None:
        """The row is to be used for something else."""
        self._ended[row] = 0.0
        self._cut[row] = 0.0
        self.seen[row] = 0.0
        self._fitted[row] = -1.0

    def refresh(
        self, row: int, prior: np.ndarray | None = None, weight: float = PRIOR, force: bool = False
    ) -> bool:
        """Make the row's tables again if enough was learned since; whether they were."""
        if not force and abs(self.seen[row] - self._fitted[row]) <= STALE * self.seen[row]:
            return False
        self._tabulate(row, ignorance() if prior is None else prior, weight)
        return True

    def masses(self, row: int) -> np.ndarray:
        """The probability of each bin [B]."""
        import numpy as np

        result: np.ndarray = -np.diff(self._alive[row])
        return result

    def near(self, rows: Sequence[int], length: int) -> list[tuple[float, float]]:
        """Requests of each row that ended by themselves at about this length (within the same six
        bins), and all of the row."""
        first = int(bin_of()[min(max(length - 1, 0), LONGEST)]) // GROUP * GROUP
        ended = self._ended[rows, first : first + GROUP].sum(axis=1).tolist()
        return list(zip(ended, self.seen[rows].tolist(), strict=True))

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        """`Predictor.outlook` from the rows. A request with a `point` has point - age steps to go,
        and is one of its row again once it has outlived that."""
        import numpy as np

        base = flight.row * self._alive.shape[1]
        age = np.minimum(flight.age, LONGEST - 1)
        cut = np.maximum(flight.limit - age, 1)
        steps = np.minimum(cut, horizon)
        ends = np.minimum(age + steps, LONGEST)
        if np.count_nonzero(flight.least):
            # It cannot end before its least length: it is as one that is just about to reach it.
            start = np.clip(flight.least - 1, age, LONGEST - 1)
            sure = np.minimum(start - age, steps)
            ends = np.maximum(ends, start)
        else:
            start, sure = age, 0
        (here, there), (area, reach) = self._at(base, np.array((start, ends)))
        ending = 1.0 - there / here
        ending[cut <= horizon] = 1.0
        expected = sure + (reach - area) / here
        if np.count_nonzero(flight.point):
            known = flight.point > age
            left = np.minimum(np.minimum(flight.point, flight.limit) - age, horizon + 1.0)
            ending = np.where(known, left <= horizon, ending)
            expected = np.where(known, np.minimum(left, horizon), expected)
        # From c = (1 - p_fin) * H + p_fin * mu_rem; where nothing ends, any mu_rem is as good.
        divisor = ending.copy()
        divisor[ending <= 0] = 1.0
        return Outlook(ending, horizon - (horizon - expected) / divisor)

    def _at(self, base: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(length > tokens), and its sum over 0..tokens - 1, for rows that start at `base` [n];
        tokens of any shape that ends with n."""
        cell = base + bin_of().take(tokens)
        inside = _inside().take(tokens)
        left, area, slope = self._tables.take(cell, axis=1)
        fall = slope * inside
        area += inside * left + 0.5 * fall * (inside - 1)
        return left + fall, area

    def _tabulate(self, row: int, prior: np.ndarray, weight: float) -> None:
        import numpy as np

        ended = self._ended[row] + weight * prior
        leaves = ended + self._cut[row]
        got_there = leaves[::-1].cumsum()[::-1]
        alive = self._alive[row]
        alive[0] = 1.0
        np.cumprod(1.0 - ended / np.maximum(got_there, 1e-300), out=alive[1:])
        np.maximum(alive, 1e-12, out=alive)
        width = np.diff(edges())
        slope = self._slope[row, :-1]
        np.divide(np.diff(alive), width, out=slope)
        np.cumsum(width * (alive[:-1] + slope * (width - 1) / 2), out=self._area[row, 1:])
        self._fitted[row] = self.seen[row]
