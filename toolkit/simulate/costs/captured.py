"""A machine whose prefill workers capture the experts of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.simulate.costs.base import CostModel

if TYPE_CHECKING:
    import numpy as np


class Captured:
    """The costs `cost`, but that a prefill takes longer by the share `capture`. Measured on one
    H100: 0.3 to 2.3 % of prompts of 2,048 tokens and more (`results/gpu/signature.json`)."""

    def __init__(self, cost: CostModel, capture: float) -> None:
        self._cost = cost
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        """What else the costs say (`links`, `machine`, their parts)."""
        return getattr(self._cost, name)

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        return self._cost.decode_s(requests, kv_tokens, distinct, longest)

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        return self._cost.prefill_s(parts) * (1 + self._capture)

    def transfer_s(self, tokens: int) -> float:
        return self._cost.transfer_s(tokens)

    def join_s(self, requests: int) -> float:
        return self._cost.join_s(requests)
