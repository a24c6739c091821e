"""Refits while workers come and go, in this process: what is expected, told and counted then."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.standin.signatures import TOKENS
from tests.unit.router.eldr.children import children
from tests.unit.router.eldr.cluster import counts, write_profile
from tests.unit.router.eldr.stand_ins import configured, decode
from toolkit.router.eldr import drift_refits
from toolkit.router.eldr.centroid_assignment import MOST_SETTLE_S, SETTLE_S
from toolkit.router.eldr.centroid_sets import Rows
from toolkit.router.eldr.locality import Locality
from toolkit.router.eldr.refits import Base, RefitError
from toolkit.router.known_workers import KnownWorkers
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.reader import SignatureSample
from toolkit.signatures.refits import refit_recent

KNOWN, UNKNOWN = [0, 1, 2, 3], [4, 5, 6, 7]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


class Site:
    """A `Locality` over workers that are up because we say so; refits are real processes."""

    def __init__(self, profile: str, decodes: int = 4) -> None:
        config = configured(*(decode(f"d{i}") for i in range(decodes)), profile=profile)
        self.known_workers = KnownWorkers(config)
        self.locality = Locality(config, self.known_workers)
        self.drift, self.assignment = self.locality.drift, self.locality.assignment
        self.history = self.locality.history
        self.rng = np.random.default_rng(3)
        for worker in self.known_workers.workers:
            worker.mark_up()

    def observe(self, kinds: list[int], scale: int = 1) -> None:
        for kind in kinds:
            values = (counts(kind, self.rng) * scale).reshape(-1).astype(np.float32)
            vector = self.locality.space.of_kept(values)
            self.locality.observe(SignatureSample(vector, values, TOKENS * scale))

    def told(self, cause: str) -> list[dict[str, Any]]:
        return [entry for entry in self.history.last if entry["cause"] == cause]

    def expects_its_own(self) -> bool:
        """Whether the watch compares with what is expected of the centroids that serve."""
        fit, watch = self.assignment.fit, self.drift.watch
        assert fit is not None
        return (watch.expected, watch.expected_workers) == (
            fit.expected.cosine,
            fit.expected.workers,
        )

    async def lose(self, number: int) -> None:
        self.known_workers.workers[1 + number].mark_down()
        await until(
            lambda: self.assignment.fit is not None and len(self.assignment.fit.groups) == 3
        )


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def site(profile: str, decodes: int = 4) -> AsyncIterator[Site]:
    """Running, with what it fits ahead."""
    made = Site(profile, decodes)
    made.locality.start()
    try:
        if decodes > 1:
            await until(lambda: made.history.jobs == 1)
        yield made
    finally:
        await made.locality.stop()


@asynccontextmanager
async def held_up() -> AsyncIterator[None]:
    """The refit that begins next stands still until the end of the block."""
    before = set(children(os.getpid()))
    await until(lambda: set(children(os.getpid())) - before)
    (child,) = set(children(os.getpid())) - before
    os.kill(child, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(child, signal.SIGCONT)


@pytest.mark.slow
async def test_a_worker_that_goes_while_a_refit_is_made_that_is_adopted(
    profile: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with site(profile) as found:
        found.observe(UNKNOWN * 40)
        async with held_up():
            await found.lose(3)
        await until(lambda: found.told("drift"))
        (refit,) = found.told("drift")
        assert refit["result"] == "adopted"
        assert "mean cosine" in refit["why"]
        assert f"ELDR: {refit['why']}; adopted: " in caplog.text
        fit = found.assignment.fit
        assert fit is not None
        assert [name for name, _ in fit.groups] == ["d0", "d1", "d2"]
        assert fit.expected.cosine > 0.6, "it is one of the new traffic"
        assert found.expects_its_own()
        assert [entry["gone"] for entry in found.told("workers")] == ["d3"], "once"


@pytest.mark.slow
async def test_a_worker_that_goes_while_a_refit_is_made_that_is_declined(profile: Any) -> None:
    async with site(profile) as found:
        found.observe(KNOWN * 20)
        asking = asyncio.ensure_future(found.locality.refit_now())
        async with held_up():
            await found.lose(3)
            assert found.expects_its_own()
        assert (await asking)["result"] == "declined"
        assert found.expects_its_own()


@pytest.mark.slow
async def test_a_fit_that_is_provisional_stays_so_when_a_worker_goes(profile: Any) -> None:
    async with site(profile) as found:
        found.observe(KNOWN * 60 + UNKNOWN * 32)
        await until(lambda: found.told("drift"))
        (refit,) = found.told("drift")
        assert (refit["result"], refit["provisional"]) == ("adopted", True)
        await found.lose(3)
        assert found.expects_its_own()
        found.observe(UNKNOWN * 64)  # the patience is over
        async with asyncio.timeout(60.0):
            while len(found.told("drift")) < 2:
                await asyncio.sleep(0.05)
                found.observe(
                    UNKNOWN[:1]
                )  # the fit of the worker that went may have been under way
        again = found.told("drift")[1]
        assert "few requests of the new traffic" in again["why"]


@pytest.mark.slow
async def test_long_prompts_are_judged_by_their_true_counts(profile: Any) -> None:
    async with site(profile) as found:
        found.observe(UNKNOWN * 40, scale=100)  # counts of 1,000 to 3,000: a byte has no room
        fit, recent = found.assignment.fit, found.drift.watch.recent()
        assert fit is not None
        expected = refit_recent(found.locality.space, recent, fit.centroids.rows)
        answer = await found.locality.refit_now()
        assert answer["batch"] == expected.batch > 0
        for name in ("distinct_old", "distinct_new", "cosine_old", "cosine_new"):
            assert answer[name] == pytest.approx(getattr(expected, name), abs=1e-3)


@pytest.mark.slow
async def test_an_error_that_nobody_expected_is_an_answer_too(
    profile: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(drift_refits, "_base_of", fail)
    async with site(profile) as found:
        found.observe(KNOWN * 20)
        with pytest.raises(RefitError, match="Too many open files"):
            await asyncio.wait_for(found.locality.refit_now(force=True), 30)
        found.observe(UNKNOWN * 40)  # a drift: tried once, not again and again
        await until(lambda: found.told("drift"))
        await asyncio.sleep(0.1)
        assert [entry["result"] for entry in found.history.last] == ["failed"] * 2
        assert found.drift.job() is None
        assert "Traceback" in caplog.text


async def test_one_worker_needs_nothing_ahead(tmp_path: Path) -> None:
    async with site(write_profile(tmp_path / "p", workers=1), decodes=1) as found:
        found.observe(KNOWN * 20)
        await found.locality.refit_now(force=True)
        assert found.history.jobs == 1


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time only the test moves."""

    now = 0.0

    def time(self) -> float:
        return self.now


def followed(profile: str, changes: dict[float, bool], until: float) -> float | None:
    """When the centroids followed d3, which is up (True) or down from these times on."""

    async def check() -> float | None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        found = Site(profile)
        fit, base = found.assignment.fit, Base(calibrated(profile).requests)
        assert fit is not None
        three = Rows(fit.centroids.rows[:3], fit.expected)
        found.assignment.replace(fit, base, {3: three})  # as if fitted ahead
        worker = found.known_workers.workers[4]
        for tick in range(-100, int(until * 100) + 1):  # at 0 it is settled that all are up
            now = tick / 100
            loop.now = 1.0 + now
            if now in changes:
                (worker.mark_up if changes[now] else worker.mark_down)()
            for _ in range(3):
                await asyncio.sleep(0)
            if found.assignment.fit is not None and len(found.assignment.fit.groups) == 3:
                await found.locality.stop()
                return now
        await found.locality.stop()
        return None

    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(check())


def test_centroids_follow_when_the_workers_have_stayed_so(profile: Any) -> None:
    later = pytest.approx(0.2 + SETTLE_S, abs=0.02)
    assert followed(profile, {0.0: False}, 2.0) == pytest.approx(SETTLE_S, abs=0.02)
    assert followed(profile, {0.0: False, 0.1: True, 0.2: False}, 2.0) == later
    assert followed(profile, {0.0: False, 0.2: True}, 3.0) is None


def test_centroids_follow_in_the_end_when_the_workers_never_stay_so(profile: Any) -> None:
    flapping = {round(0.15 * step, 2): bool(step % 2) for step in range(20)}
    assert followed(profile, flapping, 4.0) == pytest.approx(MOST_SETTLE_S, abs=0.02)
