"""Centroids follow the traffic: refits on recent requests, wanted, asked for, or turned off."""

from typing import Any

import pytest

from tests.unit.router.eldr.cluster import Traffic, admin, eldr_cluster, metrics, write_profile

KNOWN, UNKNOWN = [0, 1, 2, 3], [4, 5, 6, 7]
"""Kinds of requests that the profile has seen, and those that it has not."""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


def refits(state: Any) -> list[Any]:
    return [r for r in state["eldr"]["refits"] if r["cause"] != "workers"]


@pytest.mark.slow
async def test_traffic_that_moves_to_other_experts_gets_other_centroids(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        await traffic.many(KNOWN * 40)
        eldr = (await cluster.state())["eldr"]
        assert eldr["fit"] == pytest.approx(eldr["expected"], abs=0.03)
        await traffic.many(UNKNOWN * 50)
        state = await cluster.until(refits)
        first = refits(state)[0]
        assert (first["cause"], first["result"]) == ("drift", "adopted")
        assert first["cosine_new"] > first["cosine_old"] + 0.3
        assert first["distinct_new"] < first["distinct_old"]
        assert 0 < first["moved"] <= 1
        # One home for each new kind, and each at another worker.
        homes = [await traffic.served_by(kind) for kind in UNKNOWN]
        assert sorted(name for home in homes for name in home) == [
            f"decode-{number}" for number in range(4)
        ]
        samples = await metrics(cluster)
        assert samples['eldr_refits_total{cause="drift",result="adopted"}'] >= 1
        log = cluster.log.read_text()
        assert "adopted: cosine" in log and "distinct experts a layer" in log


@pytest.mark.slow
async def test_a_loss_after_a_drift_is_refitted_from_the_new_traffic(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        await traffic.many(UNKNOWN * 50)
        await cluster.until(refits)
        homes = {kind: await traffic.served_by(kind) for kind in UNKNOWN}
        lost = cluster.worker("decode-0")
        lost.kill()
        await cluster.until(lambda s: s["eldr"]["centroids"] == 3)
        now = {kind: await traffic.served_by(kind) for kind in UNKNOWN}
        assert sum(now[kind] == homes[kind] for kind in UNKNOWN) >= 2
        assert set().union(*now.values()) == {"decode-1", "decode-2", "decode-3"}
        state = await cluster.state()
        assert state["eldr"]["refits"][-1]["expected"] > 0.6  # of the profile's it would be 0
        lost.start()
        await cluster.until(lambda s: s["eldr"]["centroids"] == 4)
        assert {kind: await traffic.served_by(kind) for kind in UNKNOWN} == homes


@pytest.mark.slow
async def test_the_same_traffic_as_ever_starts_no_refit(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        await Traffic(cluster).many(KNOWN * 150)
        state = await cluster.state()
        assert state["eldr"]["located"] == 600
        assert not refits(state)


@pytest.mark.slow
async def test_drift_is_only_reported_where_refits_are_off(profile: Any) -> None:
    async with eldr_cluster(profile, config={"refit_on_drift": False}) as cluster:
        traffic = Traffic(cluster)
        await traffic.many(UNKNOWN * 100)
        state = await cluster.state()
        assert not refits(state)
        assert "expected" in state["eldr"]["drift"]
        assert cluster.log.read_text().count("refit_on_drift is off") == 1
        assert state["eldr"]["fit"] < state["eldr"]["expected"] - 0.3
        status, answer = await admin(cluster, "refit")
        assert (status, answer["result"]) == (200, "adopted")
        assert answer["cosine_new"] > answer["cosine_old"]
        state = await cluster.state()
        assert refits(state)[0]["cause"] == "manual"
        assert state["eldr"]["drift"] == ""


@pytest.mark.slow
async def test_a_refit_that_gains_nothing_is_declined_unless_forced(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        status, answer = await admin(cluster, "refit")
        assert status == 409 and "no request" in answer["error"]["message"]
        await traffic.many([0, 1])
        status, answer = await admin(cluster, "refit")
        assert status == 409 and "too few" in answer["error"]["message"]
        # Too early is no failure.
        assert not refits(await cluster.state())
        assert "ERROR" not in cluster.log.read_text()
        await traffic.many(KNOWN * 20)
        status, answer = await admin(cluster, "refit")
        assert (status, answer["result"]) == (200, "declined")
        status, answer = await admin(cluster, "refit", {"force": True})
        assert (status, answer["result"]) == (200, "adopted")
        for kind in KNOWN:  # the same workers keep the same kinds
            assert await traffic.served_by(kind) == {f"decode-{kind}"}
        status, answer = await admin(cluster, "refit", {"now": True})
        assert status == 400
        status, answer = await admin(cluster, "refit", {"force": 1})
        assert status == 400 and "true or false" in answer["error"]["message"]


async def test_a_prompt_counts_once_however_many_samples_are_wanted(profile: Any) -> None:
    async with eldr_cluster(profile) as cluster:
        traffic = Traffic(cluster)
        for kind in (0, 1):
            await traffic.send(kind, n=3)
        status, answer = await admin(cluster, "refit")
        assert status == 409 and answer["error"]["message"].startswith("2 recent requests")
        assert (await cluster.state())["eldr"]["located"] == 6


async def test_the_key_guards_a_refit(profile: Any) -> None:
    config = {"api_key_env": "ROUTER_KEY"}
    async with eldr_cluster(profile, config=config, env={"ROUTER_KEY": "k"}) as cluster:
        url, key = cluster.url + "/admin/refit", {"Authorization": "Bearer k"}
        async with cluster.session.post(url) as answer:
            assert answer.status == 401
        async with cluster.session.post(url, headers=key) as answer:
            assert answer.status == 403
