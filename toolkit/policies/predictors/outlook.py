"""What a predictor of output lengths answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Outlook(NamedTuple):
    """For each of n requests: `p_fin` [n], the probability that it ends within the horizon, and
    `mu_rem` [n], the steps that it then has left, on average."""

    p_fin: np.ndarray
    mu_rem: np.ndarray

    def steps(self, horizon: int) -> np.ndarray:
        """c = (1 - p_fin) * H + p_fin * mu_rem, the expected steps within the horizon [n]."""
        result: np.ndarray = horizon + self.p_fin * (self.mu_rem - horizon)
        return result
