"""Refits by the clock (`eldr@artifact`) in simulated time."""

import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.unit.simulate.fleets import COST, fleet, requests
from toolkit.decide.messages import UsePolicy
from toolkit.decide.record import recorded
from toolkit.decide.replay import replay
from toolkit.policies.base import Refits
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.resources import profiles_dir
from toolkit.signatures import nearest
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.refits import SimulatedRefits
from toolkit.simulate.request import Request
from toolkit.simulate.router import SimulatedRouter
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.workloads.patterns import with_rows

WORKERS = 4


@pytest.fixture(scope="module")
def experts() -> SimulatedExperts:
    return SimulatedExperts.of_profile(profiles_dir() / "embedded")


class Watched:
    """A run over `WORKERS` decode workers, and the centroids that its policy had, with the time."""

    def __init__(self, experts: SimulatedExperts, policy: str, given: Iterator[Request]) -> None:
        sizes = {"replicas": WORKERS, "slots": 32, "kv_tokens": 60_000}
        made = fleet(sizes, {"decode_policy": policy}, {"replicas": 2})
        self.run = Simulation(made, COST, given, experts)
        assert self.run.router.decode_policy.locality is not None
        self.locality = self.run.router.decode_policy.locality
        self.seen: list[tuple[float, Centroids]] = []
        assert self.locality.centroids is not None
        self.first = self.locality.centroids
        self.locality.on_change = self._changed

    def _changed(self) -> None:
        assert self.locality.centroids is not None
        self.seen.append((self.run.events.now, self.locality.centroids))

    @property
    def router(self) -> SimulatedRouter:
        return self.run.router


def patterned(experts: SimulatedExperts, count: int = 600, rate: float = 30.0) -> Iterator[Request]:
    return with_rows(requests(count, rate), experts, 0)


def of_one_kind(experts: SimulatedExperts, rows: list[int]) -> Iterator[Request]:
    """The same requests, all like one of these rows."""
    return (replace(each, row=rows[each.number % len(rows)]) for each in patterned(experts))


def test_every_second_on_the_last_five(experts: SimulatedExperts) -> None:
    watched = Watched(experts, "eldr@artifact", patterned(experts))
    watched.run.run()
    assert watched.run.recorder.ended == 600
    assert watched.router.refits is not None
    times = [at for at, _ in watched.seen]
    assert watched.router.refits.made == len(times) >= 10
    assert 5.0 <= times[0] < 6.0
    # The next one begins with the first request whose time has come: soon after, at 30 a second.
    assert all(1.0 <= b - a < 1.7 for a, b in pairwise(times))


def test_no_worker_loses_its_centroid(experts: SimulatedExperts) -> None:
    """Traffic of few kinds, fewer than workers, and few requests: always one to each, of length 1,
    the same owners."""
    watched = Watched(experts, "eldr@artifact", of_one_kind(experts, list(experts.traffic[:2])))
    watched.run.run()
    assert len(watched.seen) >= 10
    for _, centroids in watched.seen:
        assert centroids.rows.shape == watched.first.rows.shape
        assert centroids.owner == watched.first.owner and len(centroids.owner) == WORKERS
        assert np.linalg.norm(centroids.rows, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_centroids_come_nearer_to_traffic_that_moved(experts: SimulatedExperts) -> None:
    """All requests are like those that one centroid is nearest to; then each worker takes some."""
    assert experts.signatures is not None
    rows = np.array(experts.traffic)
    mine = nearest(experts.signatures[rows], experts.centroids(WORKERS, 0))
    busiest = rows[mine == np.bincount(mine).argmax()]
    found = {}
    for policy in ("eldr@artifact", "eldr@paper"):
        watched = Watched(experts, policy, of_one_kind(experts, busiest.tolist()))
        watched.run.run()
        assert watched.locality.centroids is not None
        last = watched.locality.centroids.rows
        assert (watched.router.refits is None) == (not watched.seen) == (policy == "eldr@paper")
        near = experts.signatures[busiest] @ last.T
        found[policy] = near.max(axis=1).mean(), len(set(near.argmax(axis=1)))
    assert found["eldr@paper"][1] == 1
    assert found["eldr@artifact"][1] >= 3
    assert found["eldr@artifact"][0] > found["eldr@paper"][0] + 0.01


def test_too_few_requests_for_the_centroids_are_left_out(experts: SimulatedExperts) -> None:
    watched = Watched(experts, "eldr@artifact", patterned(experts, 30, rate=0.4))
    watched.run.run()
    assert watched.run.recorder.ended == 30
    assert watched.router.refits is not None
    assert len(watched.seen) < 15, "two in five seconds, and four are wanted: now and then only"


def test_the_same_again(experts: SimulatedExperts) -> None:
    made = [Watched(experts, "eldr@artifact", patterned(experts)) for _ in range(2)]
    first, again = (watched.run.run().result() for watched in made)
    assert first == again
    assert all(
        (one.rows == other.rows).all()
        for (_, one), (_, other) in zip(*(w.seen for w in made), strict=True)
    )


def test_a_recording_with_refits_plays_again(experts: SimulatedExperts) -> None:
    """Each refit is a line of it; without these lines it would decide otherwise."""
    watched, sink = Watched(experts, "eldr@artifact", patterned(experts)), io.StringIO()
    policy = recorded(watched.router.decode_policy, sink)
    watched.router.decode_policy = policy
    watched.router.decider.on(UsePolicy("decode", policy), 0.0)
    watched.router.refits = SimulatedRefits.of(policy)
    watched.locality.centroids = watched.first
    watched.run.run()
    lines = sink.getvalue().splitlines()
    refits = [line for line in lines if line.startswith('{"centroids"')]
    assert watched.router.refits is not None and len(refits) == watched.router.refits.made + 1
    played = replay(lines)
    assert len(played) == 600 and not any(each.differs for each in played)
    kept = [line for line in lines if line not in refits[1:]]
    assert any(each.differs for each in replay(kept))


def test_a_policy_without_signatures_is_not_refitted(experts: SimulatedExperts) -> None:
    simulation = Simulation(fleet(), COST, patterned(experts, 20), experts)
    assert simulation.router.refits is None
    policy = EldrPolicy()
    assert SimulatedRefits.of(policy) is None


@pytest.mark.parametrize("signature", [None, "lost"])
def test_requests_without_a_signature_count_for_nothing(signature: Any) -> None:
    policy = EldrPolicy(centroids=Centroids(np.eye(2, dtype=np.float32), {("a", 0): 0}))
    policy.refits = Refits(every_s=1.0, window_s=5.0)
    refits = SimulatedRefits.of(policy)
    assert refits is not None
    for now in range(12):
        refits.observe(signature, float(now))
    assert refits.made == 0
