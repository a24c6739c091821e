"""Workers that share the cores of one machine, as CPU workers do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Party(Protocol):
    """A worker that computes. `set_speed`: 1 is that of a worker with all the cores it can use."""

    def set_speed(self, speed: float) -> None: ...


@dataclass
class _Share:
    weight: float
    demand: float
    service: float


class Cores:
    """Divides cores among those that compute, by weight; nobody gets more than it can use.

    A party that computes on `demand` cores at its full speed has a weight for each of them (Linux:
    1024 at nice 0, 110 at nice 10). `service`: cores that others need for its work meanwhile (HTTP,
    detokenizing, the router); they come first. `cores` of 0 or less: everybody has its own.
    """

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self._parties: dict[Party, _Share] = {}

    def busy(self, party: Party, weight: float, demand: float, service: float = 0.0) -> None:
        """It computes now, or differently from before."""
        if self.cores <= 0:
            return
        self._parties[party] = _Share(weight * demand, demand, service)
        self._divide()

    def idle(self, party: Party) -> None:
        """It does not compute any more."""
        if self._parties.pop(party, None) is not None:
            self._divide()

    def _divide(self) -> None:
        left = max(0.1 * self.cores, self.cores - sum(s.service for s in self._parties.values()))
        open_ = dict(self._parties)
        given: dict[Party, float] = {}
        while open_:
            per_weight = left / sum(share.weight for share in open_.values())
            full = {p: s for p, s in open_.items() if s.demand <= s.weight * per_weight}
            if not full:
                given |= {p: s.weight * per_weight / s.demand for p, s in open_.items()}
                break
            for party, share in full.items():
                given[party] = 1.0
                left -= share.demand
                del open_[party]
        for party, speed in given.items():
            party.set_speed(speed)
