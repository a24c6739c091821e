"""A cost model of which something is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.simulate.costs.base import CostModel

if TYPE_CHECKING:
    import numpy as np


class Wrapped:
    """The costs `cost`, but for what a subclass says otherwise."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

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
        return self._cost.prefill_s(parts)

    def transfer_s(self, tokens: int) -> float:
        return self._cost.transfer_s(tokens)

    def join_s(self, requests: int) -> float:
        return self._cost.join_s(requests)
