"""The router process with prefill stand-ins that tell first tokens: outputs, order, failures."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.standin.streams import resumed_ids, seed_of, token_id
from tests.unit.router.cluster_calls import (
    bodies,
    events,
    expected,
    idle,
    post,
    prompt_of,
    text_of,
)

pytestmark = pytest.mark.touched("router")

PATHS = list(bodies(1))
# Decode's first token is never there before its prefill's.
DECODE = ["--kv-ms", "20"]
FIRST: dict[str, Any] = {
    "role_args": {"prefill": ["--first-token"], "decode": DECODE},
    "config": {"first_token": "prefill"},
}


def told(**more: Any) -> dict[str, Any]:
    """Arguments of a cluster whose prefills tell first tokens, with more of a prefill's."""
    first = ["--first-token", *more.pop("prefill", ())]
    return FIRST | {"role_args": {"prefill": first, "decode": DECODE}} | more


async def early(cluster: Cluster) -> int:
    """Streams so far that began with their prefill's token."""
    async with cluster.session.get(cluster.url + "/metrics") as answer:
        text = await answer.text()
    found = re.search(r"^toolkit_router_early_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


@pytest.mark.parametrize("path", PATHS)
async def test_streams_are_the_same_in_both_settings(path: str) -> None:
    async with Cluster(**told(worker_args=["--token-ms", "1"])) as cluster:
        usage = {"stream_options": {"include_usage": True}} if path != "/generate" else {}
        asked = [
            bodies(12, **usage), bodies(1, **usage), bodies(12, hold_first=True),  # type: ignore[arg-type]
            bodies(9, tools=[{"type": "function", "function": {"name": "f"}}]),
        ]  # fmt: skip
        if path != "/generate":
            asked.append(bodies(7, n=3))
        raws = {}
        for setting, began in (("decode", 0), ("prefill", 2 + 3 * (path != "/generate"))):
            change = {"first_token": setting}
            status, _ = await post(cluster, "/admin/policy", change, admin=True)
            assert status == 200
            answers = [await post(cluster, path, each[path]) for each in asked]
            assert [status for status, _ in answers] == [200] * len(asked)
            raws[setting] = [raw for _, raw in answers]
            assert await early(cluster) == began
        for before, after in zip(raws["decode"][:4], raws["prefill"][:4], strict=True):
            assert text_of(path, before) == text_of(path, after)
            assert _usage(before) == _usage(after)
        if path != "/generate":
            assert _choices(raws["decode"][4]) == _choices(raws["prefill"][4])
            assert len(_choices(raws["prefill"][4])) == 3
        await cluster.until(idle)


def _usage(raw: bytes) -> list[Any]:
    return [event["usage"] for event in events(raw) if event.get("usage")]


def _choices(raw: bytes) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events(raw):
        for choice in event["choices"]:
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


@pytest.mark.parametrize("path", PATHS)
async def test_the_first_token_comes_before_a_decode_worker_is_chosen(path: str) -> None:
    async with Cluster(**told(prefill=["--done-ms", "400"])) as cluster:
        body = json.dumps(bodies(6)[path]).encode()
        headers = {"Content-Type": "application/json"}
        url = cluster.url + path
        async with cluster.session.post(url, data=body, headers=headers) as response:
            raw = await response.content.readuntil(b"\n\n")
            state = await cluster.state()
            assert state["parked"] == 1
            served = [await cluster.stats(f"decode-{n}") for n in range(2)]
            assert [stats["posts"] for stats in served] == [0, 0]
            raw += await response.read()
        assert text_of(path, raw) == expected(prompt_of(path), 6)


@pytest.mark.parametrize("path", PATHS)
async def test_a_decode_that_dies_after_the_first_token_loses_and_doubles_nothing(
    path: str,
) -> None:
    args = ["--token-ms", "2"]
    async with Cluster(**told(worker_args=args)) as cluster:
        for after in (0, 1, 5):
            status, raw = await post(cluster, path, bodies(20, crash_after=after)[path])
            assert (status, text_of(path, raw)) == (200, expected(prompt_of(path), 20))
            dead = await cluster.until(
                lambda s: [w["name"] for w in s["workers"] if not w["healthy"]]
            )
            for worker in dead["workers"]:
                if not worker["healthy"]:
                    cluster.worker(worker["name"]).kill()
                    cluster.worker(worker["name"]).start()
            await cluster.until(lambda s: all(w["healthy"] for w in s["workers"]))
        state = await cluster.until(idle)
        # Also of the one that died before its own first token: the client had one.
        assert (state["resumed"], state["retried"]) == (3, 0)


@pytest.mark.parametrize("path", PATHS[1:])  # a chat's role comes by itself from these decodes
async def test_kv_that_is_lost_after_the_first_token_is_made_again_with_it(path: str) -> None:
    args: dict[str, Any] = {
        "worker_args": ["--record"],
        "role_args": {"decode": ["--token-ms", "200"]},
    }
    args["role_args"]["prefill"] = ["--first-token"]
    async with Cluster(**(FIRST | args), prefills=2) as cluster:
        body = bodies(3, lose_kv=True)[path]
        status, raw = await post(cluster, path, body)
        assert status == 200
        assert expected(prompt_of(path), 1) in json.dumps(events(raw)[0])
        asked = [each for n in range(2) for each in (await cluster.stats(f"prefill-{n}"))["bodies"]]
        fresh = [each for each in asked if not resumed_ids(each)]
        assert len(fresh) == 1, "no other first token is sampled"
        again = [each for each in asked if resumed_ids(each)]
        first = token_id(seed_of(prompt_of(path)), 0)
        assert again
        assert all(resumed_ids(each) == [first] and not each["stream"] for each in again)


@pytest.mark.parametrize("path", PATHS)
async def test_a_prefill_that_refuses_is_heard_as_before(path: str) -> None:
    async with Cluster(**told()) as cluster:
        status, raw = await post(cluster, path, bodies(3, refuse_first=True)[path])
        if path == "/generate":  # SGLang answers so there
            assert status == 200
            assert events(raw)[0]["error"]["message"] == "as asked"
        else:
            answer = json.loads(raw)
            assert (status, answer["message"], answer["code"]) == (400, "as asked", 400)
        await cluster.until(idle)
        assert [(await cluster.stats(f"decode-{n}"))["posts"] for n in range(2)] == [0, 0]


async def test_a_client_that_goes_away_after_the_first_token_is_forgotten() -> None:
    async with Cluster(**told(prefill=["--done-ms", "2000"])) as cluster:
        url = cluster.url + "/v1/completions"
        body = bodies(6)["/v1/completions"]
        async with cluster.session.post(url, json=body) as response:
            assert await response.content.readuntil(b"\n\n")
        await asyncio.sleep(0)
        await cluster.until(idle, 1.5)
