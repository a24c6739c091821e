"""Oracle: knows the length. For bounds, not for serving."""

from collections.abc import Callable

from toolkit.policies.predictors.base import Flight, PlacedPrediction
from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.lengths import Lengths
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.views import Needs, RequestView


def as_limited(request: RequestView) -> int:
    """The length of a request that ignores the end of the text, as in benchmarks."""
    return request.max_new_tokens


class Oracle:
    """p_fin is 0 or 1 and mu_rem what is really left.

    `length_of(request)`: tokens that it will generate, 0 where that is unknown; by default its
    limit. A request that outlives the answer counts as one of which nothing is known. Learns
    nothing. Source: BalanceRoute (arXiv 2605.06113), predictor *oracle*.
    """

    name = "oracle"
    needs = Needs()

    def __init__(self, length_of: Callable[[RequestView], int] = as_limited) -> None:
        self.errors = Errors()
        self._length_of = length_of
        self._unknown = Lengths(1)

    def place(self, request: RequestView) -> PlacedPrediction:
        return PlacedPrediction(point=float(max(0, self._length_of(request))))

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        return self._unknown.outlook(flight, horizon)

    def ended(self, placed: PlacedPrediction, length: int, by_itself: bool) -> None:
        pass
