"""Our policies inside real workers: SGLang's DP controller chooses by them, without our router.

Every decision is on record (`toolkit.decide.record`) and comes out the same on a fresh policy.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from patches.dp.locality import DpLocality
from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from toolkit.contract.variables import DP_RECORD_VARIABLE
from toolkit.decide.replay import Replayed, replay
from toolkit.launch.running import Running
from toolkit.policies import Decision, make_policy
from toolkit.resources import profiles_dir
from toolkit.signatures.calibrated import calibrated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("dp-policies")]

TOKENS = 12
TWO_RANKS: dict[str, Any] = {"dp": 2, "kv_tokens": 8192, "max_running": 16}
SHARED_BARRIER = TWO_RANKS | {"tp": 2, "dp_attention": True}
KINDS = {"plain": TWO_RANKS, "DP attention": SHARED_BARRIER}


class Served(NamedTuple):
    """What a request gave, and the DP rank that says it ran it."""

    ids: list[int]
    rank: int


def start(folder: Path, **fields: Any) -> Any:
    """A deployment of these fields, up."""
    recipe = {"name": "dp-policy", "device": "cpu", "model": "embedded"} | fields
    return deployed(recipe, folder)


def recording(role: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """The role, with its decisions written to a file of that name."""
    return role | {"env": {DP_RECORD_VARIABLE: str(folder / f"{name}.jsonl")}}


def decisions(folder: Path, name: str) -> list[Replayed]:
    """What was recorded, played again."""
    played = replay((folder / f"{name}.jsonl").read_text().splitlines())
    assert [each for each in played if each.differs] == []
    return played


async def ask(http: Any, url: str, body: dict[str, Any]) -> Served:
    async with http.post(url + "/generate", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    return Served(answer["output_ids"], answer["meta_info"]["dp_rank"])


async def ask_all(url: str, bodies: list[dict[str, Any]], concurrency: int) -> list[Served]:
    gate = asyncio.Semaphore(concurrency)
    async with calls.session() as http:

        async def one(body: dict[str, Any]) -> Served:
            async with gate:
                return await ask(http, url, body)

        return list(await asyncio.gather(*map(one, bodies)))


def body(ids: list[int], tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    return calls.greedy(ids, tokens, stream=False) | more


def prompts(name: str, count: int = 12) -> list[list[int]]:
    """Short ones, and some with a common beginning."""
    head = calls.prompt(f"{name}-head", 90)
    own = [calls.prompt(f"{name}-{n}", 10 + 25 * n) for n in range(count // 2)]
    return own + [head + calls.prompt(f"{name}-tail-{n}", 5 + n) for n in range(count - len(own))]


# "plain" ranks run for a change under `eldr` and under `gimbal`, below.
@pytest.fixture(
    scope="module", params=["DP attention", pytest.param("plain", marks=pytest.mark.full)]
)
def balanced(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Running]:
    """A server of two DP ranks under BR-0 where they are on their own, BR-H where they meet."""
    folder = tmp_path_factory.mktemp("balanced")
    meet = request.param == "DP attention"
    policy = "brh@survival" if meet else "br0"
    role = recording(KINDS[request.param] | {"dp_policy": policy}, folder, "plain")
    if meet:
        # As over several nodes: loads come over ZMQ, to a socket that the controller owns.
        role["env"]["SGLANG_LOAD_SNAPSHOT_USE_ZMQ"] = "1"
    with start(folder, mode="plain", router="none", worker=role) as up:
        yield up


def test_outputs_are_a_plain_servers_and_both_ranks_serve(
    balanced: Running, reference: Reference
) -> None:
    asked = prompts("equal", 16)
    served = calls.run(ask_all(balanced.router_url, [body(ids) for ids in asked], 6))
    said = [each.ids for each in served]
    assert said == reference.greedy_each(asked, TOKENS, said)
    assert {each.rank for each in served} == {0, 1}


async def test_short_requests_go_to_the_rank_without_the_long_one(balanced: Running) -> None:
    url = balanced.router_url
    before = len(decisions(balanced.run_dir, "plain"))
    async with calls.session() as http:
        asked = asyncio.create_task(ask(http, url, body(calls.prompt("long", 1500), 600)))
        await asyncio.sleep(3.0)  # its prefill has run, and its rank has published that
        short = [await ask(http, url, body(calls.prompt(f"short-{n}", 20))) for n in range(6)]
        assert not asked.done(), "it ended too soon to weigh on its rank"
        long = await asked
    assert Counter(each.rank for each in short) == {1 - long.rank: 6}
    # The decisions are those of the policy, and the requests ran where it said.
    made = decisions(balanced.run_dir, "plain")[before:]
    said = [each.recorded.index for each in made if isinstance(each.recorded, Decision)]
    assert said == [long.rank, *(each.rank for each in short)]


def test_a_burst_is_spread_although_nothing_was_published_yet(balanced: Running) -> None:
    bodies = [body(calls.prompt(f"burst-{n}", 60), 4) for n in range(12)]
    served = calls.run(ask_all(balanced.router_url, bodies, len(bodies)))
    # Not six each: the first have ended when the last come.
    assert max(Counter(each.rank for each in served).values()) <= 8


def test_a_rank_that_the_request_names_always_wins(balanced: Running) -> None:
    before = len(decisions(balanced.run_dir, "plain"))
    bodies = [
        body(calls.prompt(f"named-{n}", 20), routed_dp_rank=rank)
        for n, rank in enumerate([1, 1, 1, 0, 0, 1])
    ]
    served = calls.run(ask_all(balanced.router_url, bodies, 3))
    assert [each.rank for each in served] == [1, 1, 1, 0, 0, 1]
    assert len(decisions(balanced.run_dir, "plain")) == before


@pytest.mark.parametrize("balanced", ["DP attention"], indirect=True)
def test_br_h_counts_tokens_and_learns_from_ends(balanced: Running, reference: Reference) -> None:
    recorded = balanced.run_dir / "plain.jsonl"
    before = len(recorded.read_text().splitlines())
    url, asked = balanced.router_url, prompts("brh", 10)
    served = calls.run(ask_all(url, [body(ids, 60) for ids in asked], 5))
    streamed = calls.run(calls.all_of(url, [calls.greedy(asked[0], 60, stream=True)], 1))
    said = [each.ids for each in served]
    assert said == reference.greedy_each(asked, 60, said)
    assert [answer.ids for answer in streamed] == [reference.greedy(asked[0], 60, said[0])]
    lines = [json.loads(line) for line in recorded.read_text().splitlines()[before:]]
    counted: Counter[str] = Counter()
    for line in lines:
        if "counted" in line:
            counted[line["counted"][0]] += line["counted"][1]
    ended = [line["ended"][0] for line in lines if "ended" in line and line["ended"][1]]
    sent = [line["sent"][0] for line in lines if "sent" in line]
    ours = [rid for rid in sent if counted[rid] == 60]
    assert len(ours) == 11 and set(ours) <= set(ended)
    decisions(balanced.run_dir, "plain")


def test_a_server_that_was_killed_is_back_with_its_policy(
    balanced: Running, reference: Reference
) -> None:
    (worker,) = balanced.workers
    assert worker.pid is not None
    family = psutil.Process(worker.pid).children(recursive=True)
    ranks = [p.pid for p in family if "scheduler" in " ".join(p.cmdline())]
    os.kill(ranks[0], signal.SIGKILL)
    balanced.wait_ready(worker.name, worker.restarts + 1)
    # It ended at once, not after SGLang's minute for dumps in which all its requests stand still.
    assert "crash diagnostics" not in (balanced.run_dir / f"{worker.name}.log").read_text()
    asked = prompts("again", 8)
    served = calls.run(ask_all(balanced.router_url, [body(ids) for ids in asked], 4))
    said = [each.ids for each in served]
    assert said == reference.greedy_each(asked, TOKENS, said)
    assert {each.rank for each in served} == {0, 1}


def test_gimbal_keeps_a_user_where_the_prefix_is(tmp_path: Path) -> None:
    role = recording(TWO_RANKS | {"dp_policy": "gimbal"}, tmp_path, "gimbal")
    with start(tmp_path, mode="plain", router="none", worker=role) as up:

        async def turns() -> dict[str, list[tuple[int, int]]]:
            """(rank, cached tokens) of each turn of four users, one after the other."""
            found: dict[str, list[tuple[int, int]]] = {}
            async with calls.session() as http:
                for turn in range(4):
                    for user in ("ann", "bob", "cy", "dee"):
                        ids = calls.prompt(user, 100 + 40 * turn)
                        more = {"routing_key": user} if user < "c" else {"session_id": user}
                        asked = body(ids, 2, **more)
                        async with http.post(up.router_url + "/generate", json=asked) as response:
                            meta = (await response.json())["meta_info"]
                        seen = (meta["dp_rank"], meta["cached_tokens"])
                        found.setdefault(user, []).append(seen)
            return found

        found = calls.run(turns())
    assert {user: len({rank for rank, _ in seen}) for user, seen in found.items()} == dict.fromkeys(
        found, 1
    )
    assert {seen[0][0] for seen in found.values()} == {0, 1}
    # Each turn's prompt begins with the one before.
    assert all(cached >= 100 for seen in found.values() for _, cached in seen[1:])
    decisions(tmp_path, "gimbal")


def test_behind_sglangs_router_prefill_and_decode_have_policies(
    tmp_path: Path, reference: Reference
) -> None:
    """The room says nothing of the prefill's rank: decode has to ask which it is."""
    roles = {
        "prefill": recording(TWO_RANKS | {"dp_policy": "gimbal"}, tmp_path, "prefill"),
        "decode": recording(SHARED_BARRIER | {"dp_policy": "br0"}, tmp_path, "decode"),
    }
    with start(tmp_path, router="sglang", **roles) as up:
        asked = prompts("pd", 16)
        served = calls.run(ask_all(up.router_url, [body(ids) for ids in asked], 4))
    said = [each.ids for each in served]
    assert said == reference.greedy_each(asked, TOKENS, said)
    assert {each.rank for each in served} == {0, 1}
    for side in ("prefill", "decode"):
        made = decisions(tmp_path, side)
        assert len(made) >= len(asked)
        assert ranks_of(made) == {0, 1}


def ranks_of(made: list[Replayed]) -> set[int]:
    return {each.recorded.index for each in made if isinstance(each.recorded, Decision)}


def nearest(reference: Reference, asked: list[list[int]], ranks: int) -> list[int]:
    """The rank whose centroid is nearest to each prompt's experts, by the model in transformers."""
    located: Any = make_policy("eldr@0")
    locality = DpLocality(str(profiles_dir() / "embedded"), ranks)
    locality.attach(located)
    space = calibrated(str(profiles_dir() / "embedded")).space
    signatures = [
        space.of_kept(reference.counts(ids, space.kept.tolist()).ravel().astype("float32"))
        for ids in asked
    ]
    return [int((located.centroids.rows @ signature).argmax()) for signature in signatures]


def test_eldr_inside_decode_waits_for_signatures(tmp_path: Path, reference: Reference) -> None:
    """SGLang's router sends a request to both sides at once; still its experts decide."""
    roles = {
        "prefill": recording(SHARED_BARRIER | {"dp_policy": "gimbal"}, tmp_path, "prefill"),
        "decode": TWO_RANKS | {"dp_policy": "eldr@0"},
    }
    router = {"kind": "sglang", "profile": "embedded"}
    with start(tmp_path, router=router, **roles) as up:
        log = up.worker("decode-0").log

        async def heard() -> bool:
            async with calls.session() as http:
                await ask(http, up.router_url, body(calls.prompt("first", 20)))
            return "signatures come from the prefill worker" in log.read_text(errors="replace")

        calls.run(calls.until(heard, "the decode worker hears of prefills"))
        asked = prompts("eldr", 16)
        served = calls.run(ask_all(up.router_url, [body(ids) for ids in asked], 4))
    said = [each.ids for each in served]
    assert said == reference.greedy_each(asked, TOKENS, said)
    expected = nearest(reference, asked, 2)
    assert [each.rank for each in served] == expected
    assert ranks_of(decisions(tmp_path, "prefill")) == {0, 1}
