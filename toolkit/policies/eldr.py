"""ELDR: the decode worker that already has the request's experts loaded, within a band."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from toolkit import exact
from toolkit.policies.base import (
    Decision,
    Group,
    Needs,
    Policy,
    Refits,
    RequestView,
    WorkerView,
    one_group,
)
from toolkit.policies.support.residents import Residents
from toolkit.policies.support.rotation import Rotation

if TYPE_CHECKING:
    import numpy as np

OVERLOAD = 1.5
SHARED = "all ranks share their experts"


@dataclass(frozen=True, eq=False)
class Centroids:
    """`rows` [K, D] float32, unit length; `owner` says which row belongs to which worker, that is
    to which ranks that share their experts.

    A worker without a row takes part by load alone. ValueError: rows that are no matrix, or an
    owner of a row that does not exist.
    """

    rows: np.ndarray
    owner: Mapping[Group, int]

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or not len(self.rows):
            raise ValueError(f"centroids have shape {self.rows.shape}, expected [workers, values]")
        wrong = {group: row for group, row in self.owner.items() if not 0 <= row < len(self.rows)}
        if wrong:
            raise ValueError(f"no such centroid among {len(self.rows)}: {wrong}")

    @cached_property
    def _whole(self) -> np.ndarray:
        return exact.whole(self.rows)

    def cosines(self, signature: np.ndarray) -> np.ndarray:
        """Of a unit signature [D] with each row [K]; equal rows have equal ones, on every CPU."""
        return exact.of_whole(exact.whole(signature), self._whole)


class Band(NamedTuple):
    """Who is near enough to a request: ranks, which make up `width` groups. `near`: the cosines by
    which, `own`: those with centroids alone, `best`: the highest less what crowding takes off.
    Where nothing is known of that, `fallback` says why, and all are in it."""

    indices: list[int]
    reason: str
    near: dict[int, float] | None = None
    own: dict[int, float] | None = None
    best: float = 0.0
    fallback: str = ""
    width: int = 0


@dataclass
class Counters:
    """What the decisions were. `band` sums the band's width, in workers with experts of their own,
    over `located` decisions. `moved` are those for another worker than that of the nearest
    centroid, though this one was in the band; `crowded` those where it was not, being full or too
    crowded. (In neither: what runs on another one was nearer by more than the band.) `fallbacks`
    counts by reason the requests that were routed by load alone."""

    located: int = 0
    band: int = 0
    moved: int = 0
    crowded: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)


def check_tau(tau: float | str) -> float:
    """The band's width as a number. ValueError: no number, or outside [0, 1]."""
    try:
        value = float(tau)
    except ValueError as error:
        raise ValueError(f"tau = {tau} must be a number in [0, 1]") from error
    if not 0 <= value <= 1:
        raise ValueError(f"tau = {tau} must lie in [0, 1]")
    return value


class EldrPolicy(Policy):
    """Locality band, then the shortest queue inside it.

    Formula: s_k = cos(signature, centroid_k), or the cosine with the mean signature of what is in
    flight on k where that is greater (*ours*), less what k is crowded (*ours*), s* = max s_k over
    healthy workers; among those with s_k >= s* - tau the one with the fewest requests (running +
    waiting + sent since the reading). Decode is bound by the distinct experts that a batch loads,
    so requests that use the same experts belong together; the band keeps that from overloading a
    worker. Cosines of counts lie in [0, 1]: tau = 0 is locality only, tau = 1 the shortest queue.
    Ties go to the nearer worker (at tau = 1 not even they look at it), then to the least recently
    chosen.
    Workers (*ours*): ranks that share their experts (`group_of`) are one, with one centroid, their
    mean queue, and full when all of them are. They are as near as each other, so all of them are in
    the band or none is, and the queue alone decides among them.
    Crowded (*ours*): q times the mean queue of the ranks takes (q - 1) / (overload - 1) off s_k
    where q > 1, so that `overload` times the mean weighs as much as having nothing in common, and a
    worker whose slots are all taken is out of the question unless all are. Where clusters lie far
    apart the band never opens, and a flood of one kind would melt its worker beside idle ones. Who
    came so to another worker then makes it near to the next of its kind: a flood ends up level.
    Neither at tau = 0, which is the paper's locality only.
    Degraded: without a signature (a str in its place says why), without centroids, with a signature
    of another length, where no healthy worker has a centroid, or where all healthy ranks share
    their experts, the shortest queue decides and `counters.fallbacks` says why.
    Knobs: `tau` (0.1), `overload` (1.5; infinite: only a full worker is crowded), `centroids`
    (swapped whole while running), `residents` (None: centroids alone).
    Source: ELDR (arXiv 2607.00466), "Online: Locality-band routing"; as published it is
    `eldr@paper`, as its authors' program has it `eldr@artifact`.
    """

    name = "eldr"
    needs = Needs(signature=True, residents=True)
    refits: Refits | None = None
    """By the clock; None: its home fits when it sees fit."""

    def __init__(
        self,
        seed: int = 0,
        tau: float = 0.1,
        centroids: Centroids | None = None,
        overload: float = OVERLOAD,
    ) -> None:
        if not overload > 1:
            raise ValueError(f"overload = {overload:g} must be above 1")
        self.tau = check_tau(tau)
        self.overload = overload
        self.on_change: Callable[[], None] | None = None
        """Called when centroids or residents were given to it; for who records it."""
        self._centroids = centroids
        self._residents: Residents | None = None
        self.counters = Counters()
        self.locality = self
        self._rotation = Rotation()

    @property
    def centroids(self) -> Centroids | None:
        return self._centroids

    @centroids.setter
    def centroids(self, centroids: Centroids | None) -> None:
        self._centroids = centroids
        if self.on_change is not None:
            self.on_change()

    @property
    def residents(self) -> Residents | None:
        return self._residents

    @residents.setter
    def residents(self, residents: Residents | None) -> None:
        self._residents = residents
        if self.on_change is not None:
            self.on_change()

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
            return Band(list(queues), f"by load ({found})", fallback=found)
        own, near = found
        return self._within(workers, self._less_crowded(workers, queues, near), own, near)

    def band_before_crowding(
        self,
        workers: Sequence[WorkerView],
        among: Sequence[int],
        signature: np.ndarray | str | None,
    ) -> Band:
        """The same of the workers `among`, for who waits for a slot in any case."""
        found = self.cosines(workers, among, signature)
        if isinstance(found, str):
            return Band(list(among), found, fallback=found)
        own, near = found
        return self._within(workers, near, own, near)

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
        if own is None or near is None:
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
        """The scores of the workers that are not full."""
        if self.tau == 0:
            return near
        mean = sum([queues[i] for i in near]) / len(near)
        unit = max(mean, 1.0) * (self.overload - 1)
        full = {i for i in near if workers[i].certain >= (workers[i].slots or math.inf)}
        lengths: dict[int, float] = {i: queues[i] for i in near}
        for ranks in _sharing(workers, near):
            lengths |= dict.fromkeys(ranks, sum([queues[i] for i in ranks]) / len(ranks))
            if not full.issuperset(ranks):
                full.difference_update(ranks)
        fit = [i for i in near if i not in full] or near
        return {
            i: near[i] if lengths[i] <= mean else near[i] - (lengths[i] - mean) / unit for i in fit
        }

    def _usable(self, signature: np.ndarray | str | None) -> np.ndarray | str:
        """The signature, or the reason why it says nothing of how near the workers are."""
        import numpy as np

        known = self._centroids
        if known is None:
            return "no centroids"
        if isinstance(signature, str):
            return signature or "no signature"
        if not isinstance(signature, np.ndarray):
            return "no signature"
        if signature.shape != known.rows.shape[1:]:
            return "signature of another length"
        return signature if signature.any() else "empty signature"

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
        if self._residents is None or self.tau == 0:
            return own
        beside = self._residents.cosines(signature)
        near = own.copy()
        for i, score in own.items():
            other = beside.get(groups[i], 0.0)
            if other > score:
                near[i] = other
        return near


def _sharing(workers: Sequence[WorkerView], among: Iterable[int]) -> Iterable[list[int]]:
    """Those of `among` that share their experts, by their groups."""
    groups: dict[Group, list[int]] = {}
    for i in among:
        if workers[i].shares_experts:
            groups.setdefault(workers[i].group, []).append(i)
    return groups.values()
