"""Level: every finished prefill fills a gap to the mean, and nothing rises above the heaviest."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.policies.rounds.balance_route import BalanceRoute
from toolkit.policies.support.readings import Ranks

CEILING = 4.0


class LevelPolicy(BalanceRoute):
    """Assign finished prefills so that each rank comes to the mean of the others.

    Formula, all in KV tokens: L_g = what is on rank g (used + waiting + sent since the reading),
    e_g = mean of the other ranks' L - L_g, m_g = max(0, max of the other ranks' L - L_g). A set Q
    of requests that adds d = sum of their KV tokens is worth

        F_g(Q) = |e_g| - |e_g - d| - CEILING * max(0, d - m_g)

    - |e_g| - |e_g - d|: by how much nearer to the others it brings the rank.
    - CEILING * max(0, d - m_g): above the heaviest of the others all ranks wait for it.

    BR-0 fills a rank up to the *heaviest* one, with the largest request that still fits under it.
    So the loads ratchet up until the pool has only small requests left, and the next large one that
    ends leaves a hole that nothing fills. A step's cost is the same for every load under the
    heaviest; what is left in the pool is what the next holes are filled with. With two ranks the
    mean is the heaviest, and only the ceiling differs from BR-0.

    No prediction, no state but a rotation. The two stages are BR-0's (`TwoStage`). Degraded: ranks
    without a reading come last and are in no mean, see `read_ranks`. Knobs: `s_greedy`
    (`level@S_GREEDY`), `r_max`, `wait_limit`, as there. Source: *ours*; the two stages are
    BalanceRoute's (arXiv 2605.06113).
    """

    name = "level"

    def _envelope(self, ranks: Ranks) -> GapNow:
        return GapNow(ranks.load, ranks.silent)


class GapNow:
    """Level's `Envelope`. `loads` [G] is changed in place; those that are `silent` [G] are guesses,
    and nobody is measured by them."""

    def __init__(self, loads: list[float], silent: Sequence[bool]) -> None:
        self.loads = loads
        self.silent = silent
        known = [load for load, guessed in zip(loads, silent, strict=True) if not guessed]
        self._count = len(known)
        self._sum = sum(known)
        *_, self._second, self._heaviest = sorted([0.0, 0.0, *known])

    def burden(self, g: int) -> float:
        return self.loads[g]

    def peak(self, g: int) -> float:
        return max(0.0, self._gap(g)[0])

    def values(self, g: int, sizes: Sequence[float]) -> list[float]:
        gap, margin = self._gap(g)
        near = abs(gap)
        return [near - abs(gap - d) - CEILING * max(0.0, d - margin) for d in sizes]

    def across(self, size: float) -> list[float]:
        return [self.values(g, (size,))[0] for g in range(len(self.loads))]

    def add(self, g: int, size: float) -> None:
        before = self.loads[g]
        self.loads[g] = after = before + size
        if self.silent[g]:
            return
        self._sum += size
        if before >= self._heaviest:
            self._heaviest = after
        else:
            self._second = max(self._second, min(after, self._heaviest))
            self._heaviest = max(self._heaviest, after)

    def _gap(self, g: int) -> tuple[float, float]:
        """e_g and m_g. 0 and 0 for who is alone."""
        load = self.loads[g]
        count, total, heaviest = self._count, self._sum, self._heaviest
        if not self.silent[g]:
            count, total = count - 1, total - load
            heaviest = self._second if load >= heaviest else heaviest
        if not count:
            return 0.0, 0.0
        return total / count - load, max(0.0, heaviest - load)
