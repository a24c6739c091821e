"""Survival: one distribution for all requests, conditional on the age."""

from toolkit.policies.predictors.base import Flight, PlacedPrediction
from toolkit.policies.predictors.errors import Errors
from toolkit.policies.predictors.lengths import MEMORY, Lengths
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.views import Needs, RequestView


class Survival:
    """What requests of this age had left, of all that ended here lately.

    Formula: p_fin = 1 - S(a + H) / S(a), S the share of outputs longer than that (`Lengths`). Looks
    at nothing of the request but its age and limits. Degraded: before anything has ended, every
    order of magnitude of the length is as likely. Knobs: `memory` (2000 requests, then halved).
    Source: BalanceRoute (arXiv 2605.06113), predictor *Survival*.
    """

    name = "survival"
    needs = Needs()

    def __init__(self, memory: float = MEMORY) -> None:
        self.errors = Errors()
        self.lengths = Lengths(1, memory)

    def place(self, request: RequestView) -> PlacedPrediction:
        return PlacedPrediction()

    def outlook(self, flight: Flight, horizon: int) -> Outlook:
        return self.lengths.outlook(flight, horizon)

    def ended(self, placed: PlacedPrediction, length: int, by_itself: bool) -> None:
        self.lengths.learn([0], length, by_itself)
        self.lengths.refresh(0)
