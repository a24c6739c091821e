"""Several routers over the same workers have the same centroids: one fits, the others take them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.eldr.cluster import Traffic, admin, eldr_cluster, metrics, write_profile
from tests.unit.router.eldr.test_refits import Site
from toolkit.contract.notices import BODY_MAX, NOTICE_MAX, Notice
from toolkit.contract.variables import ROUTER_NAME_VARIABLE
from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr import shared_centroids
from toolkit.router.eldr.centroid_sets import Fit
from toolkit.router.eldr.shared_centroids import (
    PART_BYTES,
    PartTold,
    SharedCentroids,
)
from toolkit.router.own_name import own_name
from toolkit.signatures.nearness import Nearness

UNKNOWN = [4, 5, 6, 7]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


def named(profile: str, name: str, **options: Any) -> Cluster:
    """A router that calls itself so: the names' order says who fits."""
    return eldr_cluster(profile, env={ROUTER_NAME_VARIABLE: name}, **options)


async def fits(cluster: Cluster, here: bool) -> None:
    await cluster.until(lambda state: state["eldr"]["fits_here"] is here)


async def version(cluster: Cluster) -> str:
    return str((await cluster.state())["eldr"]["version"])


async def has(cluster: Cluster, wanted: str) -> None:
    await cluster.until(lambda state: state["eldr"]["version"] == wanted)


@pytest.mark.parametrize("relays", [1, 2])
async def test_a_refit_at_one_router_is_that_of_all_whoever_comes_or_dies(
    profile: Any, relays: int, tmp_path: Path
) -> None:
    record = tmp_path / "decisions"
    more = {"config": {"record_decisions": str(record), "relays": relays}}
    async with named(profile, "router-2") as one:
        await fits(one, True)
        async with named(profile, "router-3", beside=one, **more) as other:
            await fits(other, False)
            before = await version(one)
            assert await version(other) == before
            status, answer = await admin(other, "refit")
            assert status == 409 and "no request" in answer["error"]["message"]
            await Traffic(one).many(UNKNOWN * 20)
            status, answer = await admin(other, "refit", {"force": True})
            assert (status, answer["result"], answer["router"]) == (200, "adopted", "router-2")
            fitted = await version(one)
            assert fitted != before and answer["version"] == fitted
            await has(other, fitted)
            assert (await metrics(other))["eldr_centroids_version"] == int(fitted, 16)
            assert (await metrics(other))["eldr_fits_here"] == 0
            await Traffic(other).many(UNKNOWN)
            lines = Path(f"{record}.decode.jsonl").read_text().splitlines()
            choices = [line for text in lines if "choose" in (line := json.loads(text))]
            assert [line["centroids"] for line in choices] == [fitted] * len(choices) and choices
            # One comes that is first in order: it fits from now on, and begins with these.
            async with named(profile, "router-1", beside=one) as first:
                await has(first, fitted)
                await fits(first, True)
                await fits(one, False)
                await Traffic(first, seed=2).many(UNKNOWN * 20)
                assert (await admin(first, "refit", {"force": True}))[1]["result"] == "adopted"
                last = await version(first)
                assert last != fitted
                await has(one, last)
                await has(other, last)
                assert first.router is not None
                first.router.send_signal(signal.SIGKILL)
                first.router.wait()
                await fits(one, True)
            assert await version(one) == last == await version(other)
            assert not (await other.state())["eldr"]["fits_here"]


class Ends:
    """Both ends of an exchange in this process: what is said goes through a notice's bounds."""

    def __init__(self, others: Iterable[str]) -> None:
        self.others = frozenset(others)
        self.peer: SharedCentroids | None = None
        self.asked = 0
        self.told: list[Any] = []

    def give(self, kinds: Iterable[str], taker: SharedCentroids) -> None:
        pass

    def tell(self, kind: str, body: Any, to: str = "") -> None:
        self.told.append(body)

    async def ask(
        self, kind: str, body: Any, answer: type[Any], to: str = "", caller: Any = None
    ) -> tuple[dict[str, Any], set[str]]:
        self.asked += 1
        if self.peer is None:
            return {}, set(self.others)
        notice = Notice("x", "1", kind, body=msgspec.json.encode(body).decode())
        raw = msgspec.json.encode(await self.peer.take_notice(notice)).decode()
        sent = msgspec.json.encode(Notice("y", "2", "answer", body=raw))
        assert len(raw) <= BODY_MAX and len(sent) <= NOTICE_MAX
        return dict.fromkeys(self.others, msgspec.json.decode(raw, type=answer)), set()


async def test_a_fitter_that_has_just_come_brings_no_old_centroids_back(profile: Any) -> None:
    """Another router has a refit, and looks before the fitter does."""
    first, fitting, second, following, ends = pair(profile)
    second.assignment.exchange(moved(second))
    kept, told = second.locality.serving, len(ends.told)
    await following._follow()
    assert second.locality.serving is kept and second.locality.following
    assert len(ends.told) == told + 1, "the fitter is to look"
    back = Ends([own_name()])
    back.peer, fitting._exchange = following, back  # type: ignore[assignment]
    await fitting.take_notice(Notice("x", "1", "fitted", body='{"version": "x"}'))
    assert fitting._look.is_set()
    await fitting._follow()
    assert kept is not None and first.locality.serving is not None
    assert first.locality.serving.version == kept.version
    assert len(back.told) == 1, "and the others hear of it"


def pair(profile: str) -> tuple[Site, SharedCentroids, Site, SharedCentroids, Ends]:
    """The fitter, called `!`, which sorts before any name, and one that follows it."""
    first, second = Site(profile), Site(profile)
    ends = Ends(["!"])
    fitting = SharedCentroids(first.locality, Ends([own_name()]))  # type: ignore[arg-type]
    following = SharedCentroids(second.locality, ends)  # type: ignore[arg-type]
    ends.peer = fitting
    return first, fitting, second, following, ends


def moved(site: Site, scale: float = 1.0) -> Fit:
    """Other centroids than its own, with other owners."""
    fit = site.assignment.fit
    assert fit is not None
    rows = np.roll(fit.centroids.rows, 3, axis=1).astype(np.float32) * np.float32(scale)
    owner = {group: (row + 1) % len(rows) for group, row in fit.centroids.owner.items()}
    return Fit(fit.groups, Centroids(rows, owner), Nearness(0.5, None))


async def test_rows_come_bit_for_bit_in_as_many_parts_as_they_need(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_centroids, "PART_BYTES", 100)
    first, _, second, following, ends = pair(profile)
    first.assignment.exchange(moved(first))
    await following._follow()
    ours, theirs = second.assignment.fit, first.assignment.fit
    assert ours is not None and theirs is not None
    assert ours.centroids.rows.tobytes() == theirs.centroids.rows.tobytes()
    assert ours.centroids.owner == theirs.centroids.owner and ours.groups == theirs.groups
    assert ours.expected == theirs.expected and second.expects_its_own()
    assert ends.asked == 1 + -(-ours.centroids.rows.nbytes // 100)
    assert second.locality.following and not first.locality.following
    asked = ends.asked
    await following._follow()
    assert ends.asked == asked + 1, "what it has it does not fetch again"
    assert not ends.told, "what was taken is not told as its own"


async def test_what_is_not_for_these_workers_or_is_not_what_it_says_is_left(
    profile: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in ("name", "dimensions", "data", "count", "nan"):
        first, fitting, second, following, _ = pair(profile)
        first.assignment.exchange(moved(first, float("nan") if wrong == "nan" else 1.0))
        before = second.assignment.fit
        real = fitting._part

        def part(asked: Any, wrong: str = wrong, real: Any = real) -> PartTold:
            told = real(asked)
            about, data = told.about, told.data
            change = msgspec.structs.replace
            if about is not None and wrong == "name":
                about = change(about, groups=[("other", 0), *about.groups[1:]])
            elif about is not None and wrong == "dimensions":
                about = change(about, dimensions=about.dimensions - 1)
            elif about is not None and wrong == "count":
                about = change(about, count=about.count + 1)
            elif data and wrong == "data":
                data = "A" * len(data)
            return change(told, about=about, data=data)

        monkeypatch.setattr(fitting, "_part", part)
        await following._follow()
        assert second.assignment.fit is before, wrong
        assert "cannot be used" in caplog.text
        caplog.clear()


async def test_a_router_that_does_not_answer_does_not_fit_for_the_others(profile: Any) -> None:
    _, _, second, following, ends = pair(profile)
    ends.peer = None
    await following._follow()
    assert not second.locality.following
    assert following._silent == {"!"}
    await following.take_notice(Notice("!", "3", "fitted", body='{"version": "x"}'))
    assert not following._silent, "it is there after all"


async def test_who_follows_begins_no_fit_and_looks_after_the_fitter(profile: Any) -> None:
    _, _, second, following, ends = pair(profile)
    await following._follow()
    second.locality.start()
    before, asked = second.assignment.fit, ends.asked
    second.known_workers.workers[2].mark_down()
    second.locality.health_changed("d1")
    for _ in range(100):
        await asyncio.sleep(0.01)
        if following._look.is_set():
            break
    assert following._look.is_set(), "workers have gone, and the fitter should have said so"
    assert second.assignment.fit is before and ends.asked == asked
    ends.peer = None  # it hangs
    await following._follow()
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if second.assignment.fit is not before:
            break
    fit = second.assignment.fit
    assert fit is not None and len(fit.groups) == 3, "then this router fits"
    await second.locality.stop()


def test_a_part_of_the_largest_recipe_fits_into_a_notice() -> None:
    told = PartTold("0" * 12, 2**53, data="A" * (4 * -(-PART_BYTES // 3)))
    body = msgspec.json.encode(told).decode()
    assert len(body) <= BODY_MAX
    assert len(msgspec.json.encode(Notice("n" * 64, "i" * 16, "answer", body=body))) <= NOTICE_MAX
