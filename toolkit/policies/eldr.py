"""ELDR: the decode worker that already has the request's experts loaded, within a band."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from toolkit.policies.base import (
    Decision,
    Group,
    Needs,
    Policy,
    RequestView,
    WorkerView,
    one_group,
)
from toolkit.policies.support.expert_locality import Centroids, ExpertLocality
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.policies.support.rotation import Rotation

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OVERLOAD", "SHARED", "Band", "Centroids", "EldrPolicy"]

OVERLOAD = 1.5
SHARED = "all ranks share their experts"


class Band(NamedTuple):
    """Who is near enough to a request: ranks, which make up `width` groups. `near`: the cosines by
    which, `own`: those with centroids alone, `best`: the highest less what crowding takes off.
    Where nothing is known of that, `fallback` says why, and all are in it. `mapped`: ranks of a
    server were told apart by its map, `unmapped`: why they were not, though there is one."""

    indices: list[int]
    reason: str
    near: dict[int, float] | None = None
    own: dict[int, float] | None = None
    best: float = 0.0
    fallback: str = ""
    width: int = 0
    mapped: bool = False
    unmapped: str = ""


class EldrPolicy(ExpertLocality, Policy):
    """Locality band, then the shortest queue inside it.

    Formula: s_k = cos(signature, centroid_k), or the cosine with the mean signature of what is in
    flight on k where that is greater (*ours*), less what k is crowded (*ours*), s* = max s_k over
    healthy workers; among those with s_k >= s* - tau the one with the fewest requests (running +
    waiting + sent since the reading). Decode is bound by the distinct experts that a batch loads,
    so requests that use the same experts belong together; the band keeps that from overloading a
    worker. Cosines of counts lie in [0, 1]: tau = 0 is locality only, tau = 1 the shortest queue.
    Ties go to the nearer worker (at tau = 1 not even they look at it), then to the least recently
    chosen. Workers (*ours*): ranks that share their experts (`group_of`) are one, with one
    centroid and their mean queue. They are as near as each other, so all of them are in the band
    or none is, and the queue alone decides among them, or their map:
    Map (*ours*): where `maps` says which experts of a server lie on which rank's GPUs and node, its
    ranks in the band are narrowed to those with s_r >= max s_r - tau, s_r in [0, 1] the share of
    the request's (token, expert) pairs that need not cross nodes, or in part GPUs (`ExpertMap`),
    less what the rank is crowded, each rank for itself. A request uses in its decode what it used
    in its prefill, so its attention belongs where its experts are. Of equal queues the rank with
    the higher share. Ranks that meet at a barrier want equal loads, so tau is small. Crowded
    (*ours*): q times the mean queue of the ranks takes (q - 1) / (overload - 1) off s_k where q >
    1, so that `overload` times the mean weighs as much as having nothing in common. Where clusters
    lie far apart the band never opens, and a flood of one kind would melt its worker beside idle
    ones. Who came so to another worker then makes it near to the next of its kind: a flood ends up
    level. Neither at tau = 0, which is the paper's locality only. Degraded: without a signature (a
    str in its place says why), without centroids, with a signature of another length, where no
    healthy worker has a centroid, or where all healthy ranks share their experts and no map tells
    them apart, the shortest queue decides and `counters.fallbacks` says why. A map for another
    number of ranks or signatures of another length does not narrow (`counters.unmapped`). Knobs:
    `tau` (0.1), `overload` (1.5; infinite: nobody is crowded), `centroids` (swapped whole while
    running), `inflight_signatures` (None: centroids alone), `maps` (by server; none). Source: ELDR
    (arXiv 2607.00466), "Online: Locality-band routing"; as published it is `eldr@paper`, as its
    authors' program has it `eldr@artifact`.
    """

    name = "eldr"
    needs = Needs(signature=True, inflight_signatures=True)

    def __init__(
        self,
        seed: int = 0,
        tau: float = 0.1,
        centroids: Centroids | None = None,
        overload: float = OVERLOAD,
    ) -> None:
        if not overload > 1:
            raise ValueError(f"overload = {overload:g} must be above 1")
        super().__init__(tau, centroids)
        self.overload = overload
        self.locality = self
        self._rotation = Rotation(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        queues = {i: worker.requests for i, worker in enumerate(workers) if worker.healthy}
        if not queues:
            return None
        band = self.band(workers, queues, request.signature)
        index = self._rotation.take(workers, self.shortest(queues, band, band.indices))
        self.note(band, index)
        return Decision(index, f"{band.reason}, {queues[index]} requests")

    def band(
        self,
        workers: Sequence[WorkerView],
        queues: dict[int, int],
        signature: np.ndarray | str | None,
    ) -> Band:
        """Who of the workers in `queues` (requests by index, at least one) is near enough."""
        found = self.cosines(workers, queues, signature)
        if isinstance(found, str):
            band = Band(list(queues), f"by load ({found})", fallback=found)
        else:
            own, near = found
            scores = self._less_crowded(workers, queues, near)
            band = self._within(workers, scores, own, near)
        return self._by_maps(workers, queues, band, signature) if self._maps else band

    def band_before_crowding(
        self,
        workers: Sequence[WorkerView],
        among: Sequence[int],
        signature: np.ndarray | str | None,
    ) -> Band:
        """The same of the workers `among`, for who waits for a slot in any case."""
        found = self.cosines(workers, among, signature)
        if isinstance(found, str):
            band = Band(list(among), found, fallback=found)
        else:
            own, near = found
            band = self._within(workers, near, own, near)
        return self._by_maps(workers, None, band, signature) if self._maps else band

    def indifferent(self, workers: Sequence[WorkerView]) -> bool:
        """Whether all healthy ranks share their experts and no map tells them apart."""
        if not one_group(workers):
            return False
        return not any(worker.healthy and worker.name in self._maps for worker in workers)

    def _by_maps(
        self,
        workers: Sequence[WorkerView],
        queues: dict[int, int] | None,
        band: Band,
        signature: np.ndarray | str | None,
    ) -> Band:
        """The band without the ranks that are farther from a request's experts than others of their
        server by more than tau; without `queues` none is crowded."""
        dropped: set[int] = set()
        near = dict.fromkeys(band.indices, 0.0) if band.near is None else dict(band.near)
        unmapped = ""
        for ranks in _sharing(workers, band.indices):
            known = self._maps.get(workers[ranks[0]].name)
            if known is None or len(ranks) < 2:
                continue
            shares = self._shares(known, [workers[i].dp_rank for i in ranks], signature)
            if isinstance(shares, str):
                unmapped = shares
                continue
            scores = dict(zip(ranks, shares, strict=True))
            for i, share in scores.items():
                near[i] += share
            if queues is not None and self.tau > 0:
                scores = self._crowded(scores, queues)
            least = max(scores.values()) - self.tau
            dropped.update([i for i in ranks if scores.get(i, -math.inf) < least])
            band = band._replace(mapped=True)
        if not band.mapped:
            return band._replace(unmapped=unmapped, fallback=unmapped or band.fallback)
        left = [i for i in band.indices if i not in dropped]
        reason = f"{len(left)} near ranks" if band.own is None else band.reason
        return band._replace(indices=left, near=near, unmapped=unmapped, reason=reason)

    def _shares(
        self, known: ExpertMap, ranks: list[int], signature: np.ndarray | str | None
    ) -> list[float] | str:
        """Of these DP ranks, or why the map says nothing."""
        usable = _told(signature, known.dimensions)
        if isinstance(usable, str):
            return usable
        if max(ranks) >= known.ranks:
            return "map of another size"
        found = known.shares(usable)
        if found is None:
            return "empty signature"
        shares: list[float] = found[ranks].tolist()
        return shares

    def _within(
        self,
        workers: Sequence[WorkerView],
        scores: dict[int, float],
        own: dict[int, float],
        near: dict[int, float],
    ) -> Band:
        """Those with s_k >= s* - tau."""
        best = max(scores.values())
        least = best - self.tau
        indices = [i for i, score in scores.items() if score >= least]
        width = len({workers[i].group for i in indices})
        return Band(indices, f"band of {width}", near, own, best, width=width)

    def shortest(self, queues: dict[int, int], band: Band, among: list[int]) -> list[int]:
        """Those of `among` with the fewest requests; at tau < 1 of equal ones the nearest."""
        least = min([queues[i] for i in among])
        ties = [i for i in among if queues[i] == least]
        near = band.near
        if near is not None and self.tau < 1:
            nearest = max([near[i] for i in ties])
            ties = [i for i in ties if near[i] == nearest]
        return ties

    def note(self, band: Band, chosen: int) -> None:
        """Count a decision that was made in this band."""
        counters, own, near = self.counters, band.own, band.near
        counters.mapped += band.mapped
        if band.unmapped:
            counters.unmapped[band.unmapped] += 1
        if own is None or near is None:
            if not band.mapped:
                counters.fallbacks[band.fallback] += 1
            return
        counters.located += 1
        counters.band += band.width
        nearest = max(own.values())
        if own.get(chosen) == nearest:
            return
        if max(own[i] for i in band.indices) == nearest:
            counters.moved += 1
        elif max(near[i] for i, c in own.items() if c == nearest) >= band.best - self.tau:
            counters.crowded += 1

    def cosines(
        self,
        workers: Sequence[WorkerView],
        among: Iterable[int],
        signature: np.ndarray | str | None,
    ) -> tuple[dict[int, float], dict[int, float]] | str:
        """By index of those of `among` who have a centroid: the cosine with it, and s_k before
        crowding. Or in a few words why the signature says nothing here."""
        if one_group(workers):
            return SHARED
        usable = self._usable(signature)
        if isinstance(usable, str):
            return usable
        groups = {i: workers[i].group for i in among}
        own = self._similarities(groups, usable)
        if not own:
            return "no worker with a centroid"
        return own, self._beside_others(groups, own, usable)

    def _less_crowded(
        self, workers: Sequence[WorkerView], queues: dict[int, int], near: dict[int, float]
    ) -> dict[int, float]:
        """The scores, less what crowding takes off."""
        if self.tau == 0:
            return near
        lengths: dict[int, float] = {i: queues[i] for i in near}
        for ranks in _sharing(workers, near):
            lengths |= dict.fromkeys(ranks, sum([queues[i] for i in ranks]) / len(ranks))
        return self._crowded(near, lengths)

    def _crowded(self, near: dict[int, float], lengths: Mapping[int, float]) -> dict[int, float]:
        """`near`, less what queues are longer than the mean."""
        mean = sum([lengths[i] for i in near]) / len(near)
        unit = max(mean, 1.0) * (self.overload - 1)
        return {
            i: score if lengths[i] <= mean else score - (lengths[i] - mean) / unit
            for i, score in near.items()
        }

    def _usable(self, signature: np.ndarray | str | None) -> np.ndarray | str:
        """The signature, or the reason why it says nothing of how near the workers are."""
        known = self._centroids
        if known is None:
            return "no centroids"
        return _told(signature, known.rows.shape[1])

    def _similarities(self, groups: Mapping[int, Group], signature: np.ndarray) -> dict[int, float]:
        """Cosine with the centroid, by worker index, of those who have one."""
        known = self._centroids
        assert known is not None
        row_of = known.owner.get
        rows = [(i, row_of(group)) for i, group in groups.items()]
        scores = known.cosines(signature).tolist()
        return {i: scores[row] for i, row in rows if row is not None}

    def _beside_others(
        self, groups: Mapping[int, Group], own: dict[int, float], signature: np.ndarray
    ) -> dict[int, float]:
        """The same, or the cosine with what is in flight where that is greater."""
        if self._inflight_signatures is None or self.tau == 0:
            return own
        beside = self._inflight_signatures.cosines(signature)
        near = own.copy()
        for i, score in own.items():
            other = beside.get(groups[i], 0.0)
            if other > score:
                near[i] = other
        return near


def _told(signature: np.ndarray | str | None, dimensions: int) -> np.ndarray | str:
    """A signature that says something, or in a few words why not."""
    import numpy as np

    if isinstance(signature, str):
        return signature or "no signature"
    if not isinstance(signature, np.ndarray):
        return "no signature"
    if signature.shape != (dimensions,):
        return "signature of another length"
    return signature if signature.any() else "empty signature"


def _sharing(workers: Sequence[WorkerView], among: Iterable[int]) -> Iterable[list[int]]:
    """Those of `among` that share their experts, by their servers."""
    servers: dict[str, list[int]] = {}
    for i in among:
        worker = workers[i]
        if worker.shares_experts:
            if worker.name not in servers:
                servers[worker.name] = []
            servers[worker.name].append(i)
    return servers.values()
