"""ELDR as its authors' program has it: never a band of one."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.policies.base import WorkerView
from toolkit.policies.eldr import Band
from toolkit.policies.published.eldr import PaperEldrPolicy


class ArtifactEldrPolicy(PaperEldrPolicy):
    """`eldr@paper`, but a band that one worker is in alone gets the second nearest too.

    Formula: s_k, s* as in `eldr@paper`; C = those with s_k >= s* - tau; at tau > 0, where C is one
    worker, C = the two with the highest s_k, of equal ones the first. The fewest requests in C
    decide, of equal ones the first: so the program, which does not look at who is nearer there.
    At tau = 0 the nearest worker, alone.

    Not in it: the program also fits its centroids anew every second, on the signatures of the last
    five, beginning at the old ones. That is the router's part (`refit_on_drift` and
    `toolkit.router.eldr` refit when traffic has changed, not by the clock); no name sets it.
    Degraded: as `eldr`. Workers here are ranks that share no experts; ranks that share them are one
    worker, and are in C together.
    Knobs: `tau` (0.1; `eldr@artifact:TAU`), `centroids`.
    Source: casys-kaist/ELDR on GitHub, `eldr/serving/routing.py`.
    """

    name = "eldr@artifact"

    def _within(
        self,
        workers: Sequence[WorkerView],
        scores: dict[int, float],
        own: dict[int, float],
        near: dict[int, float],
    ) -> Band:
        band = super()._within(workers, scores, own, near)
        if self.tau == 0 or band.width > 1:
            return band
        nearest = sorted(scores, key=lambda i: -scores[i])
        two = list(dict.fromkeys(workers[i].group for i in nearest))[:2]
        indices = [i for i in scores if workers[i].group in two]
        return band._replace(indices=indices, width=len(two), reason=f"band of {len(two)}")

    def shortest(self, queues: dict[int, int], band: Band, among: list[int]) -> list[int]:
        if band.near is None:
            return super().shortest(queues, band, among)
        return [min(among, key=lambda i: (queues[i], i))]
