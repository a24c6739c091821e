"""A machine whose steps have a draft, by what its steps without one cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.wrapped import Wrapped
from toolkit.simulate.drafting import Drafting

if TYPE_CHECKING:
    import numpy as np


class Drafted(Wrapped):
    """The costs `cost` with a draft.

    A verification of v tokens of each of n requests is a step of v * n requests that read the KV of
    n. The draft's passes, all but one over a token of each request and the last over those that
    were verified, take its `share` of such steps. A prefill runs the draft over the prompt, too.
    What a transfer takes is as without: the draft's KV is one layer's.
    """

    def __init__(self, cost: CostModel, drafting: Drafting, share: float) -> None:
        super().__init__(cost)
        self._verified, self._passes, self._share = drafting.verified, drafting.passes, share

    def decode_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None = None,
    ) -> float:
        verify = self._verify_s(requests, kv_tokens, distinct, longest)
        alone = self._passes - 1
        one = self._cost.decode_s(requests, kv_tokens, distinct, longest) if alone else 0.0
        return verify + self._share * (verify + alone * one)

    def _verify_s(
        self,
        requests: np.ndarray,
        kv_tokens: np.ndarray,
        distinct: float,
        longest: np.ndarray | None,
    ) -> float:
        many = requests * self._verified
        if longest is not None:
            import numpy as np

            # As far above the mean length as it is, which the costs take to be KV / requests.
            longest = longest - kv_tokens / np.maximum(requests, 1)
            longest = longest + kv_tokens / np.maximum(many, 1)
        return self._cost.decode_s(many, kv_tokens, distinct, longest)

    def prefill_s(self, parts: Sequence[tuple[int, int]]) -> float:
        return self._cost.prefill_s(parts) * (1 + self._share)


def drafted(cost: CostModel, drafting: Drafting | None) -> CostModel:
    """The costs of steps with that draft, if there is one."""
    if drafting is None or drafting.share is None:
        return cost
    return Drafted(cost, drafting, drafting.share)
