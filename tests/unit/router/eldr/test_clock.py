"""Refits by the clock (`eldr@artifact`): in this process, by a time that the test moves."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tests.unit.router.eldr.cluster import Traffic, admin, counts, eldr_cluster, write_profile
from tests.unit.router.eldr.test_drift import KNOWN, UNKNOWN
from tests.unit.router.eldr.test_refits import Site, held_up, until
from toolkit.decide.messages import UsePolicy
from toolkit.policies import make_policy
from toolkit.router.eldr import clock_refits
from toolkit.router.eldr.clock_refits import ClockRefits
from toolkit.router.eldr.refits import RefitError
from toolkit.signatures import warm_refit
from toolkit.signatures.reader import SignatureSample

pytestmark = pytest.mark.touched("eldr")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


class Clocked(Site):
    """A site with a decode policy, whose refits go by `now`."""

    def __init__(self, profile: str, policy: str = "eldr@artifact") -> None:
        super().__init__(profile)
        self.now = 100.0
        self.clock: ClockRefits = self.locality.clock
        self.clock._clock = lambda: self.now
        self.switch(policy)

    def switch(self, policy: str) -> None:
        self.policy = make_policy(policy)
        self.locality.attach(self.policy)
        self.known_workers.channel.send(UsePolicy("decode", self.policy))

    @property
    def rows(self) -> np.ndarray:
        """The centroids that the policy decides by."""
        assert self.policy.locality is not None and self.policy.locality.centroids is not None
        return self.policy.locality.centroids.rows

    def send(self, kinds: list[int], seconds: float, at_once: int = 8) -> None:
        """Requests over so many seconds."""
        batches = [kinds[n : n + at_once] for n in range(0, len(kinds), at_once)]
        for batch in batches:
            self.now += seconds / len(batches)
            self.observe(batch)

    def at(self, now: float, kinds: list[int]) -> None:
        """Requests at a time."""
        self.now = now
        self.observe(kinds)

    def homes(self) -> list[int]:
        """The nearest centroid of each kind."""
        rng = np.random.default_rng(5)
        drawn = [counts(kind, rng).reshape(-1).astype(np.float32) for kind in range(8)]
        signatures = np.stack([self.locality.space.of_kept(each) for each in drawn])
        result: list[int] = np.argmax(signatures @ self.rows.T, axis=1).tolist()
        return result

    async def refitted(self, times: int = 1) -> None:
        await until(lambda: self.history.totals["clock", "adopted"] >= times)


@asynccontextmanager
async def clocked(profile: str, policy: str = "eldr@artifact") -> AsyncIterator[Clocked]:
    """A site whose queue runs; what is fitted ahead is out of the way."""
    found = Clocked(profile, policy)
    found.locality.start()
    try:
        await until(lambda: found.history.jobs == 1)
        yield found
    finally:
        await found.locality.stop()


async def test_centroids_follow_traffic_that_moved_after_its_window(profile: Any) -> None:
    async with clocked(profile) as found:
        fit = found.assignment.fit
        assert fit is not None
        found.send(UNKNOWN * 100, 4.0)  # as many as make a drift
        await asyncio.sleep(0.3)
        assert (found.rows == fit.centroids.rows).all(), "the window is not full yet"
        assert found.drift.watch.reason
        found.send(UNKNOWN * 20, 3.0)
        await found.refitted()
        assert found.rows.shape == fit.centroids.rows.shape
        assert np.linalg.norm(found.rows, axis=1) == pytest.approx(1.0, abs=1e-5)
        assert sorted(found.homes()[4:]) == [0, 1, 2, 3], "each new kind has a worker"
        assert found.policy.locality is not None and found.policy.locality.centroids is not None
        assert found.policy.locality.centroids.owner == fit.centroids.owner
        assert found.assignment.fit is fit, "what other policies find is as it was"
        assert not found.told("drift"), "the clock is in its place"
        (told,) = found.told("clock")
        assert told["result"] == "adopted" and told["requests"] >= 80
        described = found.locality.describe()
        assert described["refits_by_clock"] == {"every_s": 1.0, "window_s": 5.0}


async def test_the_refit_is_the_published_one(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On what came in the five seconds before it, from the centroids that served."""
    async with clocked(profile) as found:
        sent: list[tuple[float, np.ndarray]] = []
        observe = found.clock.observe

        def noted(sample: SignatureSample) -> None:
            sent.append((found.now, sample.vector))
            observe(sample)

        monkeypatch.setattr(found.clock, "observe", noted)
        found.at(100.0, UNKNOWN * 3)
        found.at(103.0, UNKNOWN * 2)
        found.at(105.0, [0])
        await found.refitted(1)
        before = found.rows
        found.at(105.5, UNKNOWN)
        found.at(106.0, [1])
        await found.refitted(2)
        window = [vector for at, vector in sent if at >= 101.0]
        assert len(window) == 14 and found.told("clock")[-1]["requests"] == 14
        assert found.rows == pytest.approx(warm_refit(np.stack(window), before), abs=1e-6)


@pytest.mark.parametrize("policy", ["eldr@paper", "eldr", "composed", "shortest_queue"])
async def test_other_policies_are_not_refitted_by_the_clock(profile: Any, policy: str) -> None:
    async with clocked(profile, policy) as found:
        found.drift._follow = False
        before = found.locality.serving
        for _ in range(3):
            found.send(UNKNOWN * 10, 4.0)
        await asyncio.sleep(0.3)
        assert found.locality.serving is before
        assert not found.told("clock") and found.history.jobs == 1
        assert found.locality.describe()["refits_by_clock"] is None


async def test_too_few_requests_for_the_centroids_are_left_out(profile: Any) -> None:
    async with clocked(profile) as found:
        found.send(UNKNOWN[:3] * 4, 20.0, at_once=1)  # one in 1.7 s: three in the window
        await asyncio.sleep(0.3)
        assert found.history.jobs == 1 and not found.told("clock")
        found.send(UNKNOWN, 2.0, at_once=1)
        await found.refitted()


@pytest.mark.slow
async def test_another_policy_finds_the_centroids_as_they_were(profile: Any) -> None:
    async with clocked(profile) as found:
        fit = found.assignment.fit
        assert fit is not None
        found.send(UNKNOWN * 20, 6.0)
        await found.refitted()
        assert (found.rows != fit.centroids.rows).any()
        found.switch("eldr@paper")
        assert found.rows is fit.centroids.rows
        found.switch("eldr@artifact:0.05")
        assert found.rows is fit.centroids.rows, "and so does this one, and begins anew"
        found.send(UNKNOWN * 10, 4.0)
        await asyncio.sleep(0.3)
        assert found.history.totals["clock", "adopted"] == 1
        found.observe(UNKNOWN * 50)
        found.switch("eldr")
        assert not found.told("drift")
        found.observe(UNKNOWN * 80)  # now drift counts again
        await until(lambda: found.told("drift"))


async def test_a_refit_that_comes_too_late_is_dropped(profile: Any) -> None:
    """Its policy is gone, or its fit."""
    async with clocked(profile) as found:
        fit = found.assignment.fit
        found.send(UNKNOWN * 20, 6.0)
        async with held_up():
            found.switch("eldr@paper")
        await until(lambda: found.history.jobs == 2)
        assert fit is not None and found.rows is fit.centroids.rows
        assert not found.told("clock")


@pytest.mark.slow
async def test_a_worker_that_goes_leaves_one_centroid_to_each_other(profile: Any) -> None:
    async with clocked(profile) as found:
        found.send(UNKNOWN * 20, 6.0)
        await found.refitted()
        await found.lose(3)
        fit = found.assignment.fit
        assert fit is not None and found.rows is fit.centroids.rows
        found.send(UNKNOWN * 10, 2.0)
        await found.refitted(2)
        assert len(found.rows) == 3 and (found.rows != fit.centroids.rows).any()
        assert set(found.homes()[4:]) == {0, 1, 2}


async def test_a_failure_leaves_the_centroids_and_is_told_once(
    profile: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clocked(profile) as found:
        real, before = clock_refits.run_job, found.rows  # type: ignore[attr-defined]

        async def fail(*_: object, **__: object) -> None:
            raise RefitError("no memory")

        monkeypatch.setattr(clock_refits, "run_job", fail)
        found.at(100.0, UNKNOWN)
        for turn in range(1, 4):
            found.at(104.0 + turn, UNKNOWN)
            await until(lambda turn=turn: found.history.totals["clock", "failed"] == turn)  # type: ignore[misc]
        assert found.rows is before
        assert caplog.text.count("no memory") == 1
        assert [entry["error"] for entry in found.told("clock")] == ["no memory"], "the newest"
        monkeypatch.setattr(clock_refits, "run_job", real)
        found.at(108.0, UNKNOWN)
        await found.refitted()

    caplog.set_level(logging.ERROR)


async def test_the_loop_goes_on_while_a_refit_is_made(profile: Any) -> None:
    """However long it takes: here its process stands still. And there is one at a time."""
    async with clocked(profile) as found:
        before = found.rows
        found.send(UNKNOWN * 20, 6.0)
        async with held_up():
            for _ in range(4):
                found.send(UNKNOWN * 4, 1.0)
                await asyncio.sleep(0.01)
            assert found.rows is before
            assert not found.told("clock")
        await found.refitted(2)
        assert found.history.totals["clock", "adopted"] == 2, "four seconds make up for one"


def by_clock(state: Any) -> bool:
    told = [entry for entry in state["eldr"]["refits"] if entry["cause"] == "clock"]
    assert {entry["result"] for entry in told} <= {"adopted"}
    return bool(told)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["eldr@artifact", "eldr@paper"])
async def test_over_workers_by_the_real_clock(profile: Any, policy: str) -> None:
    settings = {"decode_policy": policy, "refit_on_drift": False}
    async with eldr_cluster(profile, config=settings) as cluster:
        traffic = Traffic(cluster)
        before = (await cluster.state())["eldr"]["owners"]
        begin = time.monotonic()
        refits = policy == "eldr@artifact"
        limit_s = 60.0 if refits else 7.0
        while time.monotonic() < begin + limit_s:
            await traffic.many(UNKNOWN)
            await asyncio.sleep(0.1)
            if refits and by_clock(await cluster.state()):
                break
        await traffic.many(UNKNOWN * 33)  # more than the 128 that `fit` is the mean of
        eldr = (await cluster.state())["eldr"]
        assert eldr["centroids"] == 4 and eldr["owners"] == before
        if policy == "eldr@artifact":
            assert eldr["fit"] > 0.8
        else:
            assert not by_clock({"eldr": eldr})
            assert eldr["fit"] < 0.3
        status, answer = await admin(cluster, "policy", {"decode": "eldr@paper"})
        assert (status, answer["decode"]) == (200, "eldr@paper")
        assert (await cluster.state())["eldr"]["refits_by_clock"] is None


async def test_known_traffic_stays_where_it_is(profile: Any) -> None:
    """The Hungarian method: nobody's requests change their worker for a refit."""
    async with clocked(profile) as found:
        before = found.homes()[:4]
        found.send(KNOWN * 20, 6.0)
        await found.refitted()
        assert found.homes()[:4] == before == [0, 1, 2, 3]
