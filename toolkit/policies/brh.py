"""BR-H: BR-0 that also looks at the loads of the next H steps."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from toolkit.policies.base import Needs
from toolkit.policies.predictors import check_predictor, make_predictor
from toolkit.policies.rounds.balance_route import BalanceRoute, check_s_greedy
from toolkit.policies.rounds.two_stage import R_MAX, WAIT_LIMIT
from toolkit.policies.support.inflight_lengths import InflightLengths
from toolkit.policies.support.readings import Ranks

if TYPE_CHECKING:
    import numpy as np

HORIZON = 80
GAMMA = 0.9
BETA_PER_RANK = 6.0
FARTHEST = 10_000
"""Steps that a text may ask for: every round makes a table of ranks x steps."""


def check_brh(text: str) -> dict[str, Any]:
    """Options from `PREDICTOR[:S_GREEDY][:KEY=VALUE]...`, KEY one of horizon, gamma, alpha, beta.
    ValueError: else."""
    predictor, *parts = text.split(":")
    options: dict[str, Any] = {"predictor": check_predictor(predictor)}
    for place, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if not equals and not place:
            options["s_greedy"] = check_s_greedy(part)
            continue
        if key not in _KEYS or not equals:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
            repair = (
                f"did you mean {near[0]}=VALUE?" if near else f"write {', '.join(_KEYS)} =VALUE"
            )
            raise ValueError(f"unknown knob {part!r}: {repair}")
        if key in options:
            raise ValueError(f"{key} stands twice: keep one")
        options[key] = _KEYS[key](key, value)
    return options


def _horizon(key: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise ValueError(f"{key} = {text} must be a whole number of steps") from error
    if not 0 <= value <= FARTHEST:
        raise ValueError(f"{key} = {value} must lie in 0..{FARTHEST} steps")
    return value


def _gamma(key: str, text: str) -> float:
    value = _weight(key, text)
    if value > 1:
        raise ValueError(f"{key} = {text} must lie in (0, 1]")
    return value


def _weight(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{key} = {text} must be a number") from error
    if not 0 < value < math.inf:
        raise ValueError(f"{key} = {text} must be above 0")
    return value


_KEYS: dict[str, Callable[[str, str], Any]] = {
    "horizon": _horizon,
    "gamma": _gamma,
    "alpha": _weight,
    "beta": _weight,
}


class BrHPolicy(BalanceRoute):
    """Assign finished prefills so that ranks stay level while requests end.

    Formula, tokens, h = 0..H steps ahead, G healthy ranks, discounts d_h = gamma^h:

        L_{g,h} = L_g + P_{g,h} - P_{g,0}     (not below 0)
        m_{g,h} = max over ranks of L_{.,h} - L_{g,h}
        F_g(Q)  = alpha * (sum_h d_h) * D - beta * sum_h d_h * max(0, D - m_{g,h})

    - D: KV tokens that the set Q adds, taken as constant over the horizon as in the paper.
    - P_{g,h}: what the requests that run on g are predicted to hold in h steps, each growing by a
      token a step until it ends (`InflightLengths`). Only its change counts: L_g, the corrected
      reading, stays the anchor, and what other routers sent there is assumed to stay.
    - alpha: worth of a token below the margin; beta: price of one above it, in any of the steps.
      beta > G * alpha is more cautious than BR-0: a token may fit now and not in ten steps.
    - gamma: predictions far ahead are worth less. None (*ours*): min(0.9, exp(-r)), where r answers
      end per rank and step: the odds that no slot of the rank became free by then. What becomes
      free is filled so as to level it, so what was predicted beyond it is not what will be.
    - H = 0 and (alpha, beta) = (1, G) is BR-0, decision by decision.

    A rank's load, for the order of ranks, is the discounted one, sum_h d_h * L_{g,h} (*ours*; at
    H = 0 that of this step). A rank without a reading has no margin at any h.
    A request that comes alone is weighed over the horizon too (*ours*; the paper's bypass looks at
    this step only). `inflight` is kept by whoever sends the requests. Degraded: with nothing
    tracked on any rank loads are assumed to stay.
    Knobs: `predictor` of output lengths (learned, survival, exact_match, oracle) or an `inflight`
    that has one, `horizon` H (80 steps), `alpha` (1), `beta` (None: 6 G, which is the paper's 48 at
    G = 8; its value for other G is not in our text), `gamma` (None; 0.9 in the paper), and those of
    `TwoStage`; as text `brh@PREDICTOR[:S_GREEDY][:horizon=H][:gamma=G][:alpha=A][:beta=B]`. Only
    beta / alpha decides anything.
    Source: BalanceRoute (arXiv 2605.06113), BR-H; as published it is `brh@paper`.
    """

    name = "brh"

    def __init__(
        self,
        seed: int = 0,
        horizon: int = HORIZON,
        alpha: float = 1.0,
        beta: float | None = None,
        gamma: float | None = None,
        inflight: InflightLengths | None = None,
        s_greedy: int | None = None,
        r_max: int = R_MAX,
        wait_limit: float = WAIT_LIMIT,
        predictor: str = "learned",
    ) -> None:
        super().__init__(seed, s_greedy, r_max, wait_limit)
        if horizon < 0:
            raise ValueError(f"horizon = {horizon} must not be negative")
        if gamma is not None and not 0 < gamma <= 1:
            raise ValueError(f"gamma = {gamma:g} must lie in (0, 1]")
        if not alpha > 0 or not (beta is None or beta > 0):
            raise ValueError(f"alpha = {alpha:g} and beta = {beta} must be above 0")
        self.horizon = horizon
        self.alpha = alpha
        self.beta = beta
        if inflight is None:
            inflight = InflightLengths(make_predictor(predictor))
        self.inflight: InflightLengths = inflight
        self.needs = self.needs | Needs(lengths=True) | inflight.predictor.needs
        self.gamma = gamma

    def _envelope(self, ranks: Ranks) -> MarginAhead:
        return MarginAhead(
            self._ahead(ranks), self._discounts(ranks), self.alpha, self._beta(ranks)
        )

    def _beta(self, ranks: Ranks) -> float:
        return BETA_PER_RANK * len(ranks.load) if self.beta is None else self.beta

    def _discounts(self, ranks: Ranks) -> np.ndarray:
        """d_h [H + 1]."""
        gamma = self.gamma
        if gamma is None:
            paces = ranks.paces or [1.0]
            ends = self.inflight.turnover(len(ranks.load)) * (sum(paces) / len(paces))
            gamma = min(GAMMA, round(math.exp(-ends), 12))  # exp's last bit is the CPU's
        return _powers(gamma, self.horizon)

    def _ahead(self, ranks: Ranks) -> np.ndarray:
        """L_{g,h}, tokens [G, H + 1]."""
        import numpy as np

        now = np.array(ranks.load)[:, None]
        held = self.inflight.projections(ranks.keys, self.horizon, ranks.paces)
        ahead: np.ndarray = now + (held - held[:, :1])
        np.maximum(ahead, 0.0, out=ahead)
        if any(ranks.silent):
            silent = np.array(ranks.silent)
            ahead[silent] = np.maximum(ahead[silent], ahead[~silent].max(axis=0))
        return ahead


@lru_cache(maxsize=64)
def _powers(gamma: float, most: int) -> np.ndarray:
    """gamma^h for h = 0..most, not to be changed."""
    import numpy as np

    powers = np.full(most + 1, gamma)
    powers[0] = 1.0
    np.cumprod(powers, out=powers)
    powers.setflags(write=False)
    return powers


class MarginAhead:
    """BR-H's `Envelope`: `loads` [G, H + 1] of this step and the next ones, changed in place."""

    def __init__(self, loads: np.ndarray, discounts: np.ndarray, alpha: float, beta: float) -> None:
        self.loads = loads
        self.discounts = discounts
        self.weight = float(discounts.sum())
        self.worth = alpha * self.weight
        """Of a token below every margin."""
        self.prices = beta * discounts
        """Of a token above the margin at each h [H + 1]."""
        self.heaviest: np.ndarray = loads.max(axis=0)
        # Sums of numpy, not `@`: ranks with equal loads are to be equal, whatever the CPU.
        self._burdens: list[float] = (loads * discounts).sum(axis=1).tolist()

    def burden(self, g: int) -> float:
        return self._burdens[g]

    def peak(self, g: int) -> float:
        """F_g rises by alpha * sum d a token, and by beta * d_h less past each m_{g,h}: it is
        highest at the margin where the sum of those passed has caught up."""
        margins = self.heaviest - self.loads[g]
        order = margins.argsort(kind="stable")
        at = int(self.prices[order].cumsum().searchsorted(self.worth))
        return float(margins[order[at]]) if at < len(order) else float("inf")

    def values(self, g: int, sizes: Sequence[float]) -> list[float]:
        import numpy as np

        added = np.array(sizes, dtype=np.float64)
        over = added[:, None] - (self.heaviest - self.loads[g])
        np.maximum(over, 0.0, out=over)
        over *= self.prices
        values: list[float] = (self.worth * added - over.sum(axis=1)).tolist()
        return values

    def across(self, size: float) -> list[float]:
        import numpy as np

        over = self.heaviest - self.loads
        np.subtract(size, over, out=over)
        np.maximum(over, 0.0, out=over)
        over *= self.prices
        values: list[float] = (self.worth * size - over.sum(axis=1)).tolist()
        return values

    def add(self, g: int, size: float) -> None:
        import numpy as np

        self.loads[g] += size
        np.maximum(self.heaviest, self.loads[g], out=self.heaviest)
        self._burdens[g] += size * self.weight
