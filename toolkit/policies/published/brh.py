"""BR-H as its paper has it: fixed weights, and a bypass that looks at this step alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from toolkit.policies.brh import GAMMA, HORIZON, BrHPolicy, MarginAhead, check_brh
from toolkit.policies.rounds.two_stage import R_MAX, Envelope
from toolkit.policies.support.inflight_lengths import InflightLengths

if TYPE_CHECKING:
    from toolkit.policies.support.readings import Ranks

BETA = 48.0
PREDICTORS = ("survival", "exact_match", "oracle")
"""The paper's; the first is meant where a name has none."""


def check_paper_brh(text: str) -> dict[str, Any]:
    """Options from `[PREDICTOR][:S_GREEDY][:KEY=VALUE]...`, as `check_brh` reads them. ValueError:
    else, or a predictor that is not the paper's."""
    first = text.partition(":")[0]
    if "=" in first:
        return check_brh(f"{PREDICTORS[0]}:{text}")
    if first not in PREDICTORS:
        raise ValueError(f"{first!r} is no predictor of the paper: {', '.join(PREDICTORS)}")
    return check_brh(text)


class PaperBrHPolicy(BrHPolicy):
    """`brh` with the weights, the bypass and the order of ranks that the paper has.

    Formula: `brh`'s F_g(Q) = alpha * (sum_h d_h) * D - beta * sum_h d_h * max(0, D - m_{g,h}) in
    rounds, with H = 80, gamma = 0.9, alpha = 1, beta = 48. A request that comes alone (*pool
    bypass*) goes by the single-step score of size s, without prediction:

        F_g(s) = alpha * s - beta * max(0, s - m_g)

    Not in it, though in `brh`: gamma that follows how fast requests end; beta that grows with the
    ranks (6 G); the horizon's score in the bypass; ranks in the order of their discounted loads
    (here: free slots, then the margin m_g of this step); `wait_limit` and the first stage (see
    `br0@paper`); the predictor `learned`.
    Where the paper (as far as we have it) is silent: beta is 48 at any G, though it was measured at
    G = 8; whether a bypass with no F above 0 waits for a round is not in our text, and it does not
    here, as a slot is free; and as in `brh` what `TwoStage` and `InflightLengths` say of
    themselves. Degraded: as `brh`.
    Knobs: `predictor` (survival, the paper's that needs neither repeated prompts nor foresight, as
    in its figure 6; exact_match; oracle), those of `brh` but `wait_limit`; as text
    `brh@paper[:PREDICTOR][:S_GREEDY][:KEY=VALUE]`.
    Source: BalanceRoute (arXiv 2605.06113), BR-H; the bypass: text beside figure 5.
    """

    name = "brh@paper"
    by_slots = True

    def __init__(
        self,
        seed: int = 0,
        horizon: int = HORIZON,
        alpha: float = 1.0,
        beta: float = BETA,
        gamma: float = GAMMA,
        inflight: InflightLengths | None = None,
        s_greedy: int | None = None,
        r_max: int = R_MAX,
        predictor: str = PREDICTORS[0],
    ) -> None:
        wait_limit = math.inf
        super().__init__(
            seed, horizon, alpha, beta, gamma, inflight, s_greedy, r_max, wait_limit, predictor
        )

    def _envelope(self, ranks: Ranks) -> MarginAhead:
        return MarginFirst(
            self._ahead(ranks), self._discounts(ranks), self.alpha, self._beta(ranks)
        )

    def _alone(self, ranks: Ranks) -> Envelope:
        import numpy as np

        now = np.array(ranks.load)[:, None]
        return MarginFirst(now, np.ones(1), self.alpha, self._beta(ranks))


class MarginFirst(MarginAhead):
    """`MarginAhead` whose ranks are ordered by the margin of this step."""

    def burden(self, g: int) -> float:
        return float(self.loads[g, 0])
