"""The router follows where a wide server's experts lie, and sends requests to their rank."""

import json
from typing import Any

import pytest

from tests.unit.router.eldr.cluster import EXPERTS, LAYERS, Traffic, eldr_cluster, write_profile
from toolkit.contract.paths import PLACEMENT

pytestmark = pytest.mark.touched("eldr")

RANKS = 4


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_profile(tmp_path_factory.mktemp("maps") / "profile")


def state(serial: int, turn: int = 0, **changes: Any) -> dict[str, Any]:
    """Kinds g and g + 4 have the experts 4 g .. 4 g + 3 and 16 more: on rank g + turn."""
    row = [
        expert
        for rank in range(RANKS)
        for start in (4 * ((rank - turn) % RANKS), 16 + 4 * ((rank - turn) % RANKS))
        for expert in range(start, start + 4)
    ]
    known = {
        "serial": serial, "experts": EXPERTS, "moe_layers": list(range(LAYERS)), "gpus": RANKS,
        "gpus_per_node": 2, "dispatch": "dynamic", "expert_bytes": 1, "obstacle": "",
        "layers": {str(layer): row for layer in range(LAYERS)},
    }  # fmt: skip
    return known | changes


def wide(profile: str, told: dict[str, Any] | None, **more: Any) -> Any:
    args = ["--dp-attention", "--dp-size", str(RANKS), "--record"]
    if told:
        args += ["--placement", json.dumps(told)]
    ranks = {"dp_size": RANKS, "dp_attention": True}
    return eldr_cluster(
        profile, decodes=1, role_args={"decode": args}, role_config={"decode": ranks}, **more
    )


async def map_is(cluster: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = await cluster.until(lambda s: s["eldr"]["maps"] == wanted)
    return result


async def tell(cluster: Any, told: dict[str, Any]) -> None:
    worker = next(each for each in cluster.workers if each.role == "decode")
    async with cluster.session.post(worker.url + PLACEMENT, json=told) as answer:
        assert answer.status == 200


async def ranks_of(cluster: Any, kinds: range) -> list[int]:
    """The DP rank that each kind of request is sent to."""
    worker = next(each for each in cluster.workers if each.role == "decode")
    traffic = Traffic(cluster)
    for kind in kinds:
        await traffic.send(kind)
    async with cluster.session.get(worker.url + "/stats") as answer:
        bodies = (await answer.json())["bodies"]
    return [body["routed_dp_rank"] for body in bodies[-len(kinds) :]]


@pytest.mark.parametrize("policy", ["eldr", "composed@eldr+br0"])
async def test_requests_go_to_the_rank_that_holds_their_experts(profile: Any, policy: str) -> None:
    async with wide(profile, state(0), config={"decode_policy": policy}) as cluster:
        await map_is(cluster, {"decode-0": {"serial": 0}})
        assert await ranks_of(cluster, range(4)) == [0, 1, 2, 3]
        await tell(cluster, state(1, turn=1))
        await map_is(cluster, {"decode-0": {"serial": 1}})
        assert await ranks_of(cluster, range(4)) == [1, 2, 3, 0]
        eldr = (await cluster.state())["eldr"]
        assert (eldr["mapped"], eldr["unmapped"]) == (8, {})


async def test_a_map_of_another_model_is_not_used_and_the_reason_is_shown(profile: Any) -> None:
    async with wide(profile, state(0)) as cluster:
        await map_is(cluster, {"decode-0": {"serial": 0}})
        wrong: list[tuple[dict[str, Any], str]] = [
            (state(1, moe_layers=[0, 1]), "another model's"),
            (state(2, layers={"0": [0]}), "no expert map of layers [1, 2, 3]"),
            (state(3, experts=EXPERTS + 1), "it was made for another model"),
            (state(4, obstacle="there is nowhere to move them"), "nowhere to move them"),
            (state(5, gpus="four"), "no expert map: Expected `int`"),
            (state(6, gpus=3, gpus_per_node=3), "do not divide over 3 GPUs"),
        ]
        for told, reason in wrong:
            await tell(cluster, told)
            found = await cluster.until(
                lambda s, reason=reason: reason in s["eldr"]["maps"]["decode-0"].get("problem", "")
            )
            assert found["eldr"]["maps"]["decode-0"]["serial"] is None
        await ranks_of(cluster, range(4))
        eldr = (await cluster.state())["eldr"]
        assert (eldr["mapped"], eldr["located"]) == (0, 0)
        await tell(cluster, state(7))
        await map_is(cluster, {"decode-0": {"serial": 7}})
        assert await ranks_of(cluster, range(4)) == [0, 1, 2, 3]


async def test_a_server_that_comes_back_is_asked_again(profile: Any) -> None:
    async with wide(profile, state(5)) as cluster:
        await map_is(cluster, {"decode-0": {"serial": 5}})
        worker = next(each for each in cluster.workers if each.role == "decode")
        worker.kill()
        await cluster.until(lambda s: not all(w["healthy"] for w in s["workers"]))
        worker.args[worker.args.index("--placement") + 1] = json.dumps(state(0, turn=2))
        worker.start()
        await map_is(cluster, {"decode-0": {"serial": 0}})
        assert await ranks_of(cluster, range(4)) == [2, 3, 0, 1]
        worker.kill()
        at = worker.args.index("--placement")
        del worker.args[at : at + 2]
        worker.start()
        await map_is(cluster, {})


async def test_a_server_whose_experts_stay_is_not_asked(profile: Any) -> None:
    async with wide(profile, None) as cluster:
        await ranks_of(cluster, range(2))
        eldr = (await cluster.state())["eldr"]
        assert (eldr["maps"], eldr["mapped"], eldr["unmapped"]) == ({}, 0, {})


def suited(kind: int, serial: int, **changes: Any) -> dict[str, Any]:
    """A server of four GPUs on which the experts of one kind lie on one each; others' together."""
    own = range(4 * kind, 4 * kind + 4)
    rest = [expert for expert in range(EXPERTS) if expert not in own]
    row = [e for gpu, mine in enumerate(own) for e in (mine, *rest[7 * gpu : 7 * gpu + 7])]
    return state(serial, layers={str(layer): row for layer in range(LAYERS)}, **changes)


def servers(cluster: Any) -> list[Any]:
    return [worker for worker in cluster.workers if worker.role == "decode"]


def owners(*rows: int) -> dict[str, int]:
    return {f"decode-{server}": row for server, row in enumerate(rows)}


async def tell_all(cluster: Any, kinds: list[int], serial: int) -> None:
    for worker, kind in zip(servers(cluster), kinds, strict=True):
        async with cluster.session.post(worker.url + PLACEMENT, json=suited(kind, serial)) as told:
            assert told.status == 200


async def test_servers_exchange_centroids_for_where_their_experts_lie(profile: Any) -> None:
    args = {"decode": ["--placement", json.dumps(suited(0, 0))]}
    async with eldr_cluster(profile, role_args=args) as cluster:
        await cluster.until(lambda s: len(s["eldr"]["maps"]) == 4)
        # Four maps for the first kind: whoever has it, one of them lies well.
        assert (await cluster.state())["eldr"]["owners"] == owners(0, 1, 2, 3)
        await tell_all(cluster, [1, 2, 3, 0], 1)
        found = await cluster.until(lambda s: s["eldr"]["owners"] == owners(1, 2, 3, 0))
        traffic = Traffic(cluster)
        assert await traffic.served_by(3) == {"decode-2"}
        # Maps come one by one, so it may have taken several exchanges.
        told = found["eldr"]["refits"]
        assert {(each["cause"], each["result"]) for each in told} == {("maps", "adopted")}
        assert told[-1]["busiest"] < 1.2 < told[0]["busiest_before"]
        assert sum(each["servers"] for each in told) >= 4

        # The maps stay when a server goes, and rows for three are handed out.
        servers(cluster)[0].kill()
        found = await cluster.until(lambda s: len(s["eldr"]["owners"]) == 3)
        servers(cluster)[0].start()  # with its first map, and the others as they are
        await cluster.until(lambda s: len(s["eldr"]["owners"]) == 4)
        await tell_all(cluster, [0, 1, 2, 3], 2)
        await cluster.until(lambda s: s["eldr"]["owners"] == owners(0, 1, 2, 3))


async def test_maps_that_fit_as_they_are_change_nothing(profile: Any) -> None:
    args = {"decode": ["--placement", json.dumps(suited(5, 0))]}
    async with eldr_cluster(profile, role_args=args) as cluster:
        await cluster.until(lambda s: len(s["eldr"]["maps"]) == 4)
        await tell_all(cluster, [0, 1, 2, 3], 1)
        await cluster.until(
            lambda s: [each["serial"] for each in s["eldr"]["maps"].values()] == [1] * 4
        )
        traffic = Traffic(cluster)
        assert await traffic.served_by(3) == {"decode-3"}
        eldr = (await cluster.state())["eldr"]
        assert eldr["owners"] == owners(0, 1, 2, 3)
        assert [each["cause"] for each in eldr["refits"]] == []
        worker = servers(cluster)[0]
        other = suited(0, 2, moe_layers=[0, 1])
        async with cluster.session.post(worker.url + PLACEMENT, json=other) as told:
            assert told.status == 200
        await cluster.until(
            lambda s: "another model" in s["eldr"]["maps"]["decode-0"].get("problem", "")
        )
