"""What a predictor of output lengths sees and answers. Pure data, arrays over many requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.views import Needs, RequestView

if TYPE_CHECKING:
    import numpy as np

LONGEST = 131_072
"""Tokens. Longer outputs count as this long."""


class PlacedPrediction(NamedTuple):
    """What a predictor decided of a request when it was sent.

    `row` of its distributions; `point` the length that it is sure of, tokens, 0 where it is not;
    `note` what it needs again when the request has ended.
    """

    row: int = 0
    point: float = 0.0
    note: Any = None


@dataclass(slots=True)
class Flight:
    """Requests in flight, a column each [n]: `age` tokens generated, `row` and `point` as in
    `PlacedPrediction`, `limit` tokens at which it is cut off (LONGEST where it has none), `least`
    tokens that it generates in any case."""

    age: np.ndarray
    row: np.ndarray
    point: np.ndarray
    limit: np.ndarray
    least: np.ndarray

    @classmethod
    def empty(cls, size: int) -> Flight:
        import numpy as np

        return cls(
            age=np.zeros(size, dtype=np.int64),
            row=np.zeros(size, dtype=np.int64),
            point=np.zeros(size, dtype=np.float64),
            limit=np.zeros(size, dtype=np.int64),
            least=np.zeros(size, dtype=np.int64),
        )

    @classmethod
    def of(cls, request: RequestView, placed: PlacedPrediction, age: int = 0) -> Flight:
        """One request."""
        one = cls.empty(1)
        one.set(0, request, placed, age)
        return one

    def set(self, slot: int, request: RequestView, placed: PlacedPrediction, age: int) -> None:
        limit = request.max_new_tokens
        self.age[slot] = age
        self.row[slot] = placed.row
        self.point[slot] = placed.point
        self.limit[slot] = limit if 0 < limit < LONGEST else LONGEST
        least = request.min_new_tokens
        self.least[slot] = min(least, self.limit[slot]) if least > 0 else 0

    def columns(self) -> list[np.ndarray]:
        return [self.age, self.row, self.point, self.limit, self.least]

    def head(self, count: int) -> Flight:
        """The first `count` rows, a view."""
        age, row, point = self.age[:count], self.row[:count], self.point[:count]
        return Flight(age, row, point, self.limit[:count], self.least[:count])

    def one(self, slot: int, age: int) -> Flight:
        """A copy of one row at another age."""
        row = Flight(*(column[slot : slot + 1].copy() for column in self.columns()))
        row.age[0] = age
        return row

    def grown(self, size: int) -> Flight:
        """A copy with room for `size` rows."""
        import numpy as np

        return Flight(*(np.resize(column, size) for column in self.columns()))


@runtime_checkable
class Predictor(Protocol):
    """Remaining output lengths. Learns from requests that have ended; memory is bounded."""

    name: str
    needs: Needs
    """Of each request, beside its lengths."""
    errors: Errors

    def place(self, request: RequestView) -> PlacedPrediction:
        """What is known of a request that is being sent."""

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        """p_fin and mu_rem over the next `horizon` steps (at least 0)."""

    def ended(self, placed: PlacedPrediction, length: int, by_itself: bool) -> None:
        """The request has generated `length` tokens in all. Not `by_itself`: it was cut off, by its
        limit or by an abort, and would have gone on. To be called once for each `place`."""
