"""ELDR through the router: signatures reach the policy, and what goes wrong is counted."""

import asyncio
from typing import Any

import pytest

from tests.standin.signatures import wire
from tests.unit.router.eldr.cluster import (
    EXPERTS,
    MASK,
    RECORDED,
    Traffic,
    admin,
    eldr_cluster,
    metrics,
    write_profile,
)

pytestmark = pytest.mark.touched("eldr")

VALUES = EXPERTS * len(MASK)
OTHER = ["--signature-layers", "1,7", "--experts", str(EXPERTS)]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("eldr") / "profile")


@pytest.mark.parametrize("policy", ["eldr", "composed@eldr+brh+user", "composed@eldr+br0"])
async def test_each_kind_of_request_goes_to_the_worker_of_its_experts(
    profile: Any, policy: str
) -> None:
    async with eldr_cluster(profile, config={"decode_policy": policy}) as cluster:
        traffic = Traffic(cluster)
        homes = [await traffic.served_by(kind) for kind in range(4)]
        assert homes == [{f"decode-{kind}"} for kind in range(4)]
        eldr = (await cluster.state())["eldr"]
        assert (eldr["located"], eldr["moved"], eldr["fallbacks"]) == (12, 0, {})
        assert eldr["band_mean"] == 1.0
        assert eldr["owners"] == {f"decode-{kind}": kind for kind in range(4)}
        samples = await metrics(cluster)
        assert samples['eldr_decisions_total{reason="",result="located"}'] == 12
        assert samples["eldr_band_workers_total"] == 12
        assert samples["eldr_centroids"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (None, "no signature"),
        (wire([1] * VALUES, complete=False), "incomplete signature"),
        ({**wire([]), "counts": "?"}, "malformed signature"),
        (wire([1] * VALUES, scale=0), "malformed signature"),
        (wire([1] * VALUES, scale="NaN"), "malformed signature"),
        (wire([1] * VALUES, tokens=-5), "malformed signature"),
        ([1, 2], "malformed signature"),
        (wire([1] * EXPERTS), "other layers"),
        (wire([0] * VALUES), "empty signature"),
    ],
)
async def test_a_signature_that_is_of_no_use_falls_back_on_load(
    profile: Any, signature: Any, reason: str
) -> None:
    async with eldr_cluster(profile, decodes=4) as cluster:
        traffic = Traffic(cluster)
        for _ in range(4):
            await traffic.send(standin_signature=signature)
        assert set((await traffic.completed()).values()) == {1}  # in turn: all are idle
        assert (await cluster.state())["eldr"]["fallbacks"] == {reason: 4}
        name = f'eldr_decisions_total{{reason="{reason}",result="fallback"}}'
        assert (await metrics(cluster))[name] == 4


@pytest.mark.parametrize(
    ("args", "reason", "repair"),
    [
        ([], "no signature", f"TOOLKIT_SIGNATURE_LAYERS={RECORDED}"),
        (OTHER, "other layers", f"TOOLKIT_SIGNATURE_LAYERS={RECORDED}"),
        ([*OTHER[:3], "16"], "other model", "toolkit profile"),
        (["--signature-layers", RECORDED, "--fingerprint", "sha256:2"], "other model", "profile"),
    ],
)
async def test_a_worker_that_does_not_fit_the_profile_is_named_once(
    profile: Any, args: Any, reason: str, repair: str
) -> None:
    every = args[-2:] if "--fingerprint" in args else []
    async with eldr_cluster(profile, worker_args=every, role_args={"prefill": args}) as cluster:
        traffic = Traffic(cluster)
        for _ in range(3):
            await traffic.send()
        eldr = (await cluster.state())["eldr"]
        assert eldr["fallbacks"] == {reason: 3}
        assert repair in eldr["problems"]["prefill-0"]
        prefill = cluster.worker("prefill-0")
        prefill.kill()
        prefill.start()
        await cluster.until(lambda s: s["workers"][0]["healthy"])
        log = cluster.log.read_text()
        assert log.count("worker prefill-0 and the profile do not fit") == 1, log


async def test_a_worker_that_comes_back_right_is_used_again(profile: Any) -> None:
    async with eldr_cluster(profile, role_args={"prefill": OTHER}) as cluster:
        prefill = cluster.worker("prefill-0")
        prefill.kill()
        prefill.args = ["--signature-layers", RECORDED, "--experts", str(EXPERTS)]
        await cluster.until(lambda s: not s["workers"][0]["healthy"])
        prefill.start()
        await cluster.until(lambda s: s["workers"][0]["healthy"])
        assert await Traffic(cluster).served_by(2) == {"decode-2"}
        assert (await cluster.state())["eldr"]["problems"] == {}


async def test_a_worker_whose_slots_are_taken_gets_no_more(profile: Any) -> None:
    args = ["--token-ms", "20", "--slots", "2"]
    async with eldr_cluster(profile, worker_args=args) as cluster:
        traffic = Traffic(cluster)
        await asyncio.gather(*(traffic.send(0, tokens=60) for _ in range(6)))
        served = await traffic.completed()
        eldr = (await cluster.state())["eldr"]
        assert max(served.values()) <= 2, served
        assert eldr["crowded"] >= 1
        assert (await metrics(cluster))["eldr_crowded_total"] == eldr["crowded"]


async def test_the_policy_is_switched_at_run_time_and_keeps_what_it_knows(profile: Any) -> None:
    async with eldr_cluster(profile, config={"decode_policy": "round_robin"}) as cluster:
        traffic = Traffic(cluster)
        await traffic.many([0] * 4, at_once=1)
        assert set((await traffic.completed()).values()) == {1}
        assert (await cluster.state())["eldr"]["active"] is False
        for name in ("eldr@0.2", "shortest_queue", "eldr@0.2"):
            status, answer = await admin(cluster, "policy", {"decode": name})
            assert (status, answer["decode"]) == (200, name)
            if name != "shortest_queue":
                assert await traffic.served_by(3) == {"decode-3"}
        eldr = (await cluster.state())["eldr"]
        assert (eldr["tau"], eldr["located"]) == (0.2, 6)
        for name, tau in (("eldr@paper", 0.1), ("eldr@artifact:0.05", 0.05)):
            status, answer = await admin(cluster, "policy", {"decode": name})
            assert (status, answer["decode"]) == (200, name)
            await traffic.send(3)
            eldr = (await cluster.state())["eldr"]
            assert eldr["tau"] == tau
        assert eldr["located"] == 8
        status, answer = await admin(cluster, "policy", {"decode": "eldr@papr"})
        assert status == 400 and "did you mean eldr@paper?" in answer["error"]["message"]
        status, answer = await admin(cluster, "policy", {"decode": "eldr@2"})
        assert status == 400 and "tau" in answer["error"]["message"]
        status, answer = await admin(cluster, "policy", {"dispatch": "concurrent"})
        assert status == 400 and "dispatch" in answer["error"]["message"]
        assert (await cluster.state())["dispatch"] == "late"


async def test_without_a_profile_eldr_is_refused_and_so_is_a_refit() -> None:
    async with eldr_cluster("", config={"profile": None, "decode_policy": "random"}) as cluster:
        status, answer = await admin(cluster, "policy", {"decode": "eldr"})
        assert status == 400 and "profile" in answer["error"]["message"]
        status, answer = await admin(cluster, "refit")
        assert status == 409 and "profile" in answer["error"]["message"]
        state = await cluster.state()
        assert "eldr" not in state and state["policies"]["decode"] == "random"


async def test_labels_reach_the_oracle_and_no_log(profile: Any) -> None:
    config = {"decode_policy": "label_oracle"}
    async with eldr_cluster(profile, config=config) as cluster:
        before: dict[Any, Any] = {}
        for label in ("red", "green", "blue"):
            headers = {"x-toolkit-label": label}
            for _ in range(3):
                url = cluster.url + "/v1/completions"
                body = {"prompt": "x", "max_tokens": 1}
                async with cluster.session.post(url, json=body, headers=headers) as response:
                    assert response.status == 200
            after = await Traffic(cluster).completed()
            changed = [after[name] - before.get(name, 0) for name in after]
            assert sorted(changed) == [0, 0, 0, 3]
            before = after
        assert "green" not in cluster.log.read_text()


async def test_what_decodes_say_of_their_steps_is_summed_up(profile: Any) -> None:
    async with eldr_cluster(profile, worker_args=["--steps"]) as cluster:
        traffic = Traffic(cluster)
        assert not any("steps" in worker for worker in (await cluster.state())["workers"])
        for _ in range(2):
            await traffic.send(1, tokens=10)
            state = await cluster.until(lambda s: "steps" in s["workers"][2])
        state = await cluster.until(lambda s: s["workers"][2]["steps"]["steps"] == 20)
        steps = state["workers"][2]["steps"]
        assert (steps["requests"], steps["kv_tokens"], steps["distinct"]) == (20, 320, 80.0)
        assert "steps" not in state["workers"][1]
        samples = await metrics(cluster)
        where = '{dp_rank="0",worker="decode-1"}'
        assert samples["decode_steps_total" + where] == 20
        assert samples["decode_distinct_experts_total" + where] == 80
        assert samples["decode_step_seconds_total" + where] == pytest.approx(0.02)
        assert samples["decode_step_requests_total" + where] == 20
        assert samples["decode_step_kv_tokens_total" + where] == 320


async def test_the_band_spreads_what_one_worker_cannot_take(profile: Any) -> None:
    async with eldr_cluster(
        profile, worker_args=["--token-ms", "5"], config={"decode_policy": "eldr@1"}
    ) as cluster:
        traffic = Traffic(cluster)
        await asyncio.gather(*(traffic.send(0, tokens=60) for _ in range(8)))
        served = await traffic.completed()
        eldr = (await cluster.state())["eldr"]
        assert max(served.values()) <= 3 and eldr["band_mean"] >= 2
        assert eldr["moved"] + eldr["crowded"] >= 8 - served["decode-0"]
