"""A machine whose prefill workers capture the experts of each prompt."""

from collections.abc import Sequence

from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.wrapped import Wrapped


class Captured(Wrapped):
    """The costs `cost`, but that a prefill takes longer by the share `capture`. Measured on one
    H100: 0.3 to 2.3 % of prompts of 2,048 tokens and more (`results/gpu/signature.json`)."""

    def __init__(self, cost: CostModel, capture: float) -> None:
        super().__init__(cost)
        self._capture = capture

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        return self._cost.prefill_s(parts) * (1 + self._capture)
