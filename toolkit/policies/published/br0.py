"""BR-0 as its paper has it: nobody is placed for having waited long."""

import math

from toolkit.policies.br0 import Br0Policy
from toolkit.policies.rounds.two_stage import R_MAX


class PaperBr0Policy(Br0Policy):
    """`br0` without `wait_limit`, and with the paper's first stage.

    Formula: `br0`'s, F_g(Q) = d - G * max(0, d - m_g), in its two stages and its bypass.

    Not in it, though in `br0`: a request that stood at the head of the pool while 64 others were
    placed goes next there, whatever its F. Here it is only ever the best F, so with a pool that
    never empties a large request may wait without a bound. And while slots are plenty `br0` serves
    the rank with the least load first; here it is the one with most free slots.
    Where the paper (as far as we have it) is silent, as in `br0`: see `TwoStage` on equal ones, on
    KV room and on `s_greedy`, whose value is not in our text. Degraded: as `br0`.
    Knobs: `s_greedy` (None: `r_max` slots a rank; `br0@paper:S_GREEDY`), `r_max` (4).
    Source: BalanceRoute (arXiv 2605.06113), BR-0, eq. 1.
    """

    name = "br0@paper"
    by_slots = True

    def __init__(self, seed: int = 0, s_greedy: int | None = None, r_max: int = R_MAX) -> None:
        super().__init__(seed, s_greedy, r_max, wait_limit=math.inf)
