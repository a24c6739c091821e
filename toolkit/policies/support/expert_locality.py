"""What who follows experts goes by: given to it by its home, and swapped whole while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from toolkit import exact
from toolkit.policies.views import Group, Refits

if TYPE_CHECKING:
    import numpy as np

    from toolkit.policies.support.expert_map import ExpertMap
    from toolkit.policies.support.inflight_signatures import InflightSignatures


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
    def version(self) -> str:
        """A word for these very centroids with these owners: equal ones have equal versions."""
        text = f"{self.rows.shape} {sorted(self.owner.items(), key=repr)}".encode()
        digest = blake2b(text, digest_size=6)
        digest.update(self.rows.astype("<f4").tobytes())
        return digest.hexdigest()

    @cached_property
    def _whole(self) -> np.ndarray:
        return exact.whole(self.rows)

    def cosines(self, signature: np.ndarray) -> np.ndarray:
        """Of a unit signature [D] with each row [K]; equal rows have equal ones, on every CPU."""
        return exact.of_whole(exact.whole(signature), self._whole)


@dataclass
class EldrCounters:
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
    mapped: int = 0
    unmapped: Counter[str] = field(default_factory=Counter)


def check_tau(tau: float | str) -> float:
    """The band's width as a number. ValueError: no number, or outside [0, 1]."""
    try:
        value = float(tau)
    except ValueError as error:
        raise ValueError(f"tau = {tau} must be a number in [0, 1]") from error
    if not 0 <= value <= 1:
        raise ValueError(f"tau = {tau} must lie in [0, 1]")
    return value


class ExpertLocality:
    """The signatures and maps that requests are compared with, and what came of it.

    `tau`: the width of the band. ValueError: it is no width.
    """

    refits: Refits | None = None
    """By the clock; None: its home fits when it sees fit."""

    def __init__(self, tau: float, centroids: Centroids | None) -> None:
        self.tau = check_tau(tau)
        self.on_change: Callable[[], None] | None = None
        """Called when centroids, in-flight signatures or maps were given to it; for who records
        it."""
        self._centroids = centroids
        self._inflight_signatures: InflightSignatures | None = None
        self._maps: Mapping[str, ExpertMap] = {}
        self.counters = EldrCounters()

    @property
    def centroids(self) -> Centroids | None:
        return self._centroids

    @centroids.setter
    def centroids(self, centroids: Centroids | None) -> None:
        self._centroids = centroids
        if self.on_change is not None:
            self.on_change()

    @property
    def inflight_signatures(self) -> InflightSignatures | None:
        return self._inflight_signatures

    @inflight_signatures.setter
    def inflight_signatures(self, inflight_signatures: InflightSignatures | None) -> None:
        self._inflight_signatures = inflight_signatures
        if self.on_change is not None:
            self.on_change()

    @property
    def maps(self) -> Mapping[str, ExpertMap]:
        """By server; swapped whole."""
        return self._maps

    @maps.setter
    def maps(self, maps: Mapping[str, ExpertMap]) -> None:
        self._maps = maps
        if self.on_change is not None:
            self.on_change()
