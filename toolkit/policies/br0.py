"""BR-0: balance the KV tokens of ranks that wait for each other at every step."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.policies.rounds.balance_route import BalanceRoute
from toolkit.policies.support.readings import Ranks


class Br0Policy(BalanceRoute):
    """Assign finished prefills so that the ranks' idle time at the step's barrier shrinks most.

    Formula, all in KV tokens: L_g = what is on rank g (used + waiting + sent since the reading),
    M = max L_g over the G healthy ranks, margin m_g = M - L_g. A set Q of requests that adds
    d = sum of their KV tokens is worth

        F_g(Q) = d - G * max(0, d - m_g)

    - A decode step takes as long as its heaviest rank: G * M is what the step costs, sum L_g what
      is done in it, I = G * M - sum L_g what is lost. F is exactly the decrease of I.
    - d: up to the margin, tokens are work that others would have waited for anyway.
    - G * max(0, d - m_g): beyond it each token makes all G ranks wait.

    Two stages (`TwoStage`) decide which rank is next and which requests it may take. No prediction,
    no state but a rotation. Degraded: ranks without a reading count as loaded, see `read_ranks`.
    All healthy workers count as one barrier (*ours*), though only ranks of one server with DP
    attention really wait for each other: level loads suit separate servers as well.
    Margins by server were tried in the simulator (the paper's model, four servers of 2 and of 8
    ranks): tokens/s within 1 % either way on full ranks; on half empty ones up to 2 % more, at a
    p95 TPOT 4 to 6 % higher.
    Knobs: `s_greedy` (slots in all above which stage 1 works; None: `r_max` a rank; 0: choose from
    the whole pool, see `TwoStage`; `br0@S_GREEDY`), `r_max` (4),
    `wait_limit` (64 requests, *ours*).
    Source: BalanceRoute (arXiv 2605.06113), BR-0, eq. 1; as published it is `br0@paper`.
    """

    name = "br0"

    def _envelope(self, ranks: Ranks) -> MarginNow:
        return MarginNow(ranks.load)


class MarginNow:
    """BR-0's `Envelope`: the loads of this step. `loads` [G] is changed in place."""

    def __init__(self, loads: list[float]) -> None:
        self.loads = loads
        self.heaviest = max(loads)

    def burden(self, g: int) -> float:
        return self.loads[g]

    def peak(self, g: int) -> float:
        return self.heaviest - self.loads[g]

    def values(self, g: int, sizes: Sequence[float]) -> list[float]:
        ranks, margin = len(self.loads), self.heaviest - self.loads[g]
        return [d - ranks * (d - margin) if d > margin else d for d in sizes]

    def across(self, size: float) -> list[float]:
        return [self.values(g, (size,))[0] for g in range(len(self.loads))]

    def add(self, g: int, size: float) -> None:
        self.loads[g] += size
        self.heaviest = max(self.heaviest, self.loads[g])
