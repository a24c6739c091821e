"""Which experts each token uses, for a model whose routing is given to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Routing:
    """`ids` [N, T, L, K]: the K experts of each of the T tokens that a request of row N goes
    through, one after the other and then again, at each of L layers of `experts`."""

    ids: np.ndarray
    experts: int

    @property
    def tokens(self) -> int:
        """Of each row."""
        return int(self.ids.shape[1])

    def distinct(self, rows: Sequence[int], places: Sequence[int]) -> float:
        """Mean distinct experts a layer of a step in which row n is at its token `places[n]`."""
        picked = self.ids[list(rows), [place % self.tokens for place in places]]
        return float(
            np.mean([len(np.unique(picked[:, layer])) for layer in range(picked.shape[1])])
        )


def drawn(
    chances: np.ndarray, layers: int, experts: int, used: int, tokens: int, seed: int = 0
) -> Routing:
    """`used` different experts for each of `tokens` tokens of each row, by its chances [N, l, e].

    Layers of the larger model take those of `chances` in turn, with its experts in an order of
    their own; an expert stands for several where the larger model has more of them, or is one with
    others where that has fewer. Tokens are independent given their row, as in a simulation.
    """
    source = np.random.default_rng(seed)
    rows, of, few = chances.shape
    share = _overlap(experts, few)
    ids = np.empty((rows, tokens, layers, used), dtype=np.int16)
    for layer in range(layers):
        weights = chances[:, layer % of][:, source.permutation(few)] @ share.T
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(weights, 1e-12))
        noise = source.gumbel(size=(rows, tokens, experts))
        best = np.argpartition(-(logs[:, None] + noise), used - 1, axis=2)[..., :used]
        ids[:, :, layer] = best
    return Routing(ids, experts)


def _overlap(experts: int, few: int) -> np.ndarray:
    """[experts, few]: the part of each of the few that each of the many stands for."""
    many, of = np.arange(experts + 1) / experts, np.arange(few + 1) / few
    low = np.maximum(many[:-1, None], of[None, :-1])
    high = np.minimum(many[1:, None], of[None, 1:])
    part: np.ndarray = np.maximum(high - low, 0.0) * few
    return part
