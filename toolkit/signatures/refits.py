"""Centroids fitted anew while serving, to the traffic of late."""

from dataclasses import dataclass, replace

import numpy as np

from toolkit.signatures.calibration import Calibration, Floats, Indices
from toolkit.signatures.clusters import balanced_kmeans, nearest
from toolkit.signatures.distinct import distinct_reduction
from toolkit.signatures.matching import match_centroids
from toolkit.signatures.nearness import Nearness, nearness
from toolkit.signatures.reservoir import Recent
from toolkit.signatures.rules import DriftRules
from toolkit.signatures.space import SignatureSpace

BATCHES = (8, 4, 2)
_LEAST = 2  # requests for each centroid, at least, before only the youngest are fitted
_DEFAULT = DriftRules()


@dataclass(frozen=True, eq=False)
class Refit:
    """New `centroids` [K, D] in the order of the old ones' workers, and what they are worth.

    On `held_out` requests, the youngest but not fitted: `cosine_*` is the mean to the nearest
    centroid, `workers_*` the workers in use (`workers_in_use`; None for fewer than two requests),
    `distinct_*` the experts a layer that a batch of `batch` requests of one worker would load, by
    their prefill frequencies, as decode's are not known (None, with batch 0: no worker has two).
    `moved`: share of all recent requests whose nearest worker changes. `fitted`: requests fitted.
    `provisional`: the older requests spoiled the fit, and were left out; once there are more of
    the new kind, fit again. Where no fit was possible `centroids` are the old ones, `fitted` is 0.
    """

    centroids: Floats
    cosine_old: float
    cosine_new: float
    distinct_old: float | None
    distinct_new: float | None
    moved: float
    worthwhile: bool
    batch: int = 0
    workers_old: float | None = None
    workers_new: float | None = None
    held_out: int = 0
    fitted: int = 0
    provisional: bool = False

    @property
    def summary(self) -> str:
        """For the log: what changes and what it should bring."""
        if not self.fitted:
            return "too few recent requests for a refit"
        parts = [f"cosine {self.cosine_old:.3f} -> {self.cosine_new:.3f}"]
        if self.distinct_old is not None and self.distinct_new is not None:
            parts.append(
                f"{self.distinct_old:.1f} -> {self.distinct_new:.1f} distinct experts a layer in "
                f"batches of {self.batch}"
            )
        if self.workers_old is not None and self.workers_new is not None:
            parts.append(f"{self.workers_old:.1f} -> {self.workers_new:.1f} workers in use")
        parts.append(f"{self.moved:.0%} of the requests move")
        judged = f"{self.fitted} requests fitted, {self.held_out} held out"
        return f"{', '.join(parts)} ({judged})"


def refit_recent(
    space: SignatureSpace,
    recent: Recent,
    old: Floats,
    seed: int = 0,
    rules: DriftRules = _DEFAULT,
) -> Refit:
    """Balanced centroids of recent requests, each on the worker of the old one it is most like.

    What comes next is like what came last, so the youngest judge: a random half of the youngest
    `rules.window` requests is held out (a quarter of all, where there are fewer than two windows).
    How far back it pays to look is tried out: the youngest 1, 2, 4, ... windows of the others, and
    all of them, are clustered in turn, and the fit with the best held-out cosine is taken, unless
    it crowds (windows that double, as in ADWIN: Bifet and Gavalda, SDM 2007). After a sudden change
    most of the reservoir is of the old kind and would only pull the centroids back; in steady
    traffic more requests make better ones. *Ours.*

    Worthwhile: the held-out cosine rises by `rules.min_gain`, or the new centroids relieve a
    crowd (`rules.crowded`) without as great a loss. The weights and layers of the space stay:
    other ones would need other counts of the prefill workers, that is, another profile.

    Degraded: fewer recent requests to fit than workers, or only zero signatures, which are never
    fitted: nothing changes and it is not worthwhile. All signatures equal: so are the
    centroids, and the locality band holds every worker.
    512 requests of 24 x 128 and 24 workers take 0.4 s of one thread (`tests/benchmarks/drift.py`).
    ValueError: centroids or counts of another space, no centroids.
    """
    if old.ndim != 2 or not len(old) or old.shape[1] != space.dimensions:
        raise ValueError(
            f"old centroids have shape {old.shape}, expected [workers, {space.dimensions}]"
        )
    if recent.counts.shape[1] != space.dimensions:
        raise ValueError(
            f"recent counts have shape {recent.counts.shape}, expected [n, {space.dimensions}]: "
            "they were taken in another signature space"
        )
    recent = recent.oldest_first()
    signatures = _signatures(space, recent)
    held, train = _split(signatures, rules.window, seed)
    found = None
    for rows in _spans(train, len(recent), rules.window, len(old)):
        centroids = balanced_kmeans(signatures[rows], len(old), seed).centroids
        judged = nearness(signatures[held], centroids)
        if found is None or _better(judged, found[1], rules):
            found = centroids, judged, rows
    if found is None:
        now = nearness(signatures, old)
        return Refit(
            old, now.cosine, now.cosine, None, None, 0.0, False,
            workers_old=now.workers, workers_new=now.workers,
        )  # fmt: skip
    centroids, after, rows = found
    centroids = centroids[np.argsort(match_centroids(centroids, old))]
    before = nearness(signatures[held], old)
    gain = after.cosine - before.cosine
    relief = rules.crowded(before.workers, after.workers) and gain > -rules.min_gain
    result = Refit(
        centroids=centroids,
        cosine_old=before.cosine,
        cosine_new=after.cosine,
        distinct_old=None,
        distinct_new=None,
        moved=float(np.mean(nearest(signatures, old) != nearest(signatures, centroids))),
        worthwhile=bool(gain >= rules.min_gain or relief),
        workers_old=before.workers,
        workers_new=after.workers,
        held_out=len(held),
        fitted=len(rows),
        provisional=len(rows) < len(train),
    )
    groups = [nearest(signatures[held], rows) for rows in (old, centroids)]
    return _with_distinct(result, space, recent, held, groups, seed)


def _signatures(space: SignatureSpace, recent: Recent) -> Floats:
    """[n, D], the same vectors as the router's."""
    result = np.empty((len(recent), space.dimensions), dtype=np.float32)
    for row in range(len(recent)):
        result[row] = space.of_kept(recent.values(slice(row, row + 1))[0])
    return result


def _split(signatures: Floats, window: int, seed: int) -> tuple[Indices, Indices]:
    """Rows held out, and the others that are not zero, ascending: oldest first."""
    count = len(signatures)
    young = min(window, max(2, count // 2))
    held = count - 1 - np.random.default_rng(seed).permutation(min(young, count))[: young // 2]
    return held, np.setdiff1d(np.flatnonzero(signatures.any(axis=1)), held)


def _spans(train: Indices, count: int, window: int, workers: int) -> list[Indices]:
    """The rows to fit in turn: most first, so that of equal fits the one with most wins."""
    if len(train) < workers:
        return []
    spans = [train]
    while window < count:
        rows = train[train >= count - window]
        if _LEAST * workers <= len(rows) < len(train):
            spans.append(rows)
        window *= 2
    return sorted(spans, key=len, reverse=True)


def _better(new: Nearness, old: Nearness, rules: DriftRules) -> bool:
    """The nearer fit; but one that crowds must gain `min_gain` by it."""
    gain = new.cosine - old.cosine
    if rules.crowded(old.workers, new.workers):
        return gain > -rules.min_gain
    if rules.crowded(new.workers, old.workers):
        return gain >= rules.min_gain
    return gain > 0


def _with_distinct(
    refit: Refit,
    space: SignatureSpace,
    recent: Recent,
    held: Indices,
    groups: list[Indices],
    seed: int,
) -> Refit:
    """`distinct_*` for the largest batch that workers with half of the requests can fill."""
    shape = (len(held), len(space.layers), -1)
    counts, tokens = recent.values(held).reshape(shape), recent.tokens[held]
    # A worker from before the wire was exact may say a little more than the prompt's length.
    decode = np.minimum(counts, tokens[:, None, None].astype(np.float32))
    if not counts.any(axis=(0, 2)).all():  # only requests without a signature
        return refit
    data = Calibration(counts, decode, tokens)
    for batch in BATCHES:
        filled = [_share_in_groups_of(batch, group) for group in groups]
        if min(filled) >= 0.5:
            old, new = (distinct_reduction(data, group, batch, seed).mean for group in groups)
            return replace(refit, distinct_old=old, distinct_new=new, batch=batch)
    return refit


def _share_in_groups_of(least: int, groups: Indices) -> float:
    sizes = np.bincount(groups)
    return float(sizes[sizes >= least].sum() / len(groups))
