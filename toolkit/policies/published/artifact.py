"""ELDR as its authors' program has it: no band of one, and centroids that move every second."""

from collections.abc import Sequence

from toolkit.policies.base import Refits, WorkerView
from toolkit.policies.eldr import Band
from toolkit.policies.published.eldr import PaperEldrPolicy


class ArtifactEldrPolicy(PaperEldrPolicy):
    """`eldr@paper`, but a band that one worker is in alone gets the second nearest too.

    Formula: s_k, s* as in `eldr@paper`; C = those with s_k >= s* - tau; at tau > 0, where C is one
    worker, C = the two with the highest s_k, of equal ones the first. The fewest requests in C
    decide, of equal ones the first: so the program, which does not look at who is nearer there.
    At tau = 0 the nearest worker, alone.

    Refits: the centroids are fitted anew every second on the signatures of the last five, beginning
    at the present ones: balanced spherical k-means, each worker keeps the centroid most like its
    own, and nobody asks whether the new ones are better (`toolkit.signatures.online`). The first
    five seconds after its first request, and with fewer signatures in the window than centroids,
    there is none. The policy only says so (`refits`): router and simulator do it, and what makes
    centroids follow a drift rests meanwhile.

    Not in it: the program's workers are fixed. Here, where one goes or comes, the next refit begins
    at the centroids that the router has for so many workers.
    Degraded: as `eldr`. Workers here are ranks that share no experts; ranks that share them are one
    worker, and are in C together.
    Knobs: `tau` (0.1; `eldr@artifact:TAU`), `centroids`.
    Source: casys-kaist/ELDR on GitHub, `eldr/serving/routing.py` and `centroid_update.py` (2.5 s in
    its code, 1 s in the published runs).
    """

    name = "eldr@artifact"
    refits = Refits(every_s=1.0, window_s=5.0)

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
