"""Expert use as specialised as a paper measured, out of requests that are more so."""

import random
from collections.abc import Mapping

import numpy as np

from tests.benchmarks.shared.eldr_rows import Rows
from toolkit.signatures.calibration import Calibration
from toolkit.signatures.centroids import fit_space
from toolkit.simulate.experts import Mixture, SimulatedExperts

BATCH, BATCHES = 24, 200
PROMPT = 300
"""Tokens of the prompt that a signature is counted over: the median of the traffic."""
FINE = 10_000
"""Chances are kept as parts of so many tokens."""


class Blend:
    """Requests of one workload, in which `share` of each one's chances is the mean of all.

    Every token of a request behaves with probability 1 - `share` as its own, else as one of any
    request of the calibration; a token uses `thin` times as many of a layer's experts as those of
    the rows. Decode chances, prefill counts (drawn, `PROMPT` tokens) and with them IDF weights and
    layer mask are all of that model: signatures must not tell more than the model itself shows.
    `fitted`: rows to fit to, by the workload's shares; `served`: those that requests follow.
    """

    def __init__(self, rows: Rows, kinds: Mapping[str, float], most: int, thin: float) -> None:
        self.kinds = dict(kinds)
        self.fitted = rows.drawn(kinds, False, most)
        self.served = sorted({row for kind in kinds for row in rows.of(kind, True)})
        every = self.fitted + self.served
        self._prefill, self._decode = rows.prefill[every] * thin, rows.decode[every] * thin
        self._labels = [rows.labels[row] for row in every]
        self._held = np.arange(len(every)) >= len(self.fitted)

    @property
    def prompts(self) -> int:
        """Distinct ones that are fitted to."""
        return len(set(self.fitted))

    def _mixed(self, chances: np.ndarray, share: float) -> np.ndarray:
        mean = chances[~self._held].mean(axis=0)
        return ((1 - share) * chances + share * mean).clip(0, 1)

    def chances(self, share: float) -> SimulatedExperts:
        """Without signatures."""
        counts = np.rint(self._mixed(self._decode, share) * FINE)
        tokens = np.full(len(counts), FINE)
        return SimulatedExperts(counts, tokens, labels=self._labels, held_out=self._held)

    def experts(self, share: float, seed: int = 0) -> SimulatedExperts:
        """With signatures, as a prefill of the same model gives them."""
        source = np.random.default_rng(seed)
        counts = source.binomial(PROMPT, self._mixed(self._prefill, share))
        decode = np.rint(self._mixed(self._decode, share) * FINE)
        tokens = np.full(len(decode), FINE)
        fit = ~self._held
        space, _, _ = fit_space(Calibration(counts[fit], decode[fit], tokens[fit]), seed)
        return SimulatedExperts(decode, tokens, counts, space, self._labels, self._held)

    def fewer(self, share: float) -> float:
        """How many fewer experts a batch of one kind activates than a mixed one."""
        experts = self.chances(share)
        return 1 - activated(experts, self.kinds, True) / activated(experts, self.kinds, False)

    def as_special(self, wanted: float) -> float:
        """The share with which batches of one kind activate at most so many fewer."""
        low, high = 0.0, 0.0 if self.fewer(0.0) <= wanted else 1.0
        while high - low > 0.005:
            middle = (low + high) / 2
            low, high = (middle, high) if self.fewer(middle) > wanted else (low, middle)
        return high


def activated(experts: SimulatedExperts, kinds: Mapping[str, float], alike: bool) -> float:
    """Mean distinct experts of batches of what is served: of one kind, or of all mixed."""
    source = random.Random(0)
    rows = {kind: [row for row in experts.traffic if kind in experts.labels[row]] for kind in kinds}
    names, shares = list(kinds), list(kinds.values())
    total = 0.0
    for _ in range(BATCHES):
        batch = Mixture(experts)
        kept = source.choices(names, shares)[0]
        for _ in range(BATCH):
            kind = kept if alike else source.choices(names, shares)[0]
            batch.add(source.choice(rows[kind]))
        total += batch.distinct()
    return total / BATCHES
