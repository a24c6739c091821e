"""A router over stand-in workers: requests that move to another decode worker in mid-stream."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.standin.streams import HALF
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

ARGS = ["--resume", "--token-ms", "4"]
CHAT = "/v1/chat/completions"
TOKENS = 250


def cluster(**options: Any) -> Cluster:
    return Cluster(**{"worker_args": ARGS, **options})


async def migrate(router: Cluster, **body: Any) -> dict[str, Any]:
    """Once what it is about has begun."""
    for _ in range(200):
        status, raw = await post(router, "/admin/migrate", body, admin=True)
        assert status == 200, raw
        if b"has not begun" not in raw:
            break
        await asyncio.sleep(0.02)
    result: dict[str, Any] = json.loads(raw)
    return result


async def begun(router: Cluster, count: int = 1) -> None:
    """Until so many streams have tokens of their decode workers."""

    def runs(state: dict[str, Any]) -> bool:
        return bool(sum(w["inflight"] for w in state["workers"] if w["role"] != "prefill") == count)

    await router.until(runs)
    await asyncio.sleep(0.06)


def place(state: dict[str, Any]) -> list[str]:
    """Where requests run, once a request."""
    return [
        row["name"]
        for row in state["workers"]
        if row["role"] != "prefill"
        for _ in range(row["inflight"])
    ]


@asynccontextmanager
async def streaming(router: Cluster, path: str = CHAT, tokens: int = TOKENS, **extra: Any) -> Any:
    """A stream with the id "r" that has begun; the place where it runs, and its answer."""
    task = asyncio.ensure_future(post(router, path, {**bodies(tokens, rid="r")[path], **extra}))
    try:
        await begun(router)
        (where,) = place(await router.state())
        yield where, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def other(name: str) -> str:
    return "decode-1" if name == "decode-0" else "decode-0"


def check_text(path: str, raw: bytes, tokens: int = TOKENS) -> None:
    assert HALF not in raw.decode()
    assert text_of(path, raw) == expected(prompt_of(path), tokens)


@pytest.mark.parametrize("path", list(bodies(1)))
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
async def test_a_stream_that_moves_to_and_fro_says_what_it_would_have_said(
    path: Any, first_token: str
) -> None:
    first = ["--first-token"] if first_token == "prefill" else []
    async with cluster(role_args={"prefill": first}) as router:
        extra = {"stream_options": {"include_usage": True}} if path != "/generate" else {}
        async with streaming(router, path, **extra) as (where, task):  # type: ignore[arg-type]
            for _ in range(3):
                where = other(where)
                told = await migrate(router, rid="r", to=where)
                (move,) = told["moves"]
                assert move["outcome"] == "moved", move
                assert (move["kind"], move["to"]) == ("replay", where)
                assert place(await router.state()) == [where]
            status, raw = await task
        assert status == 200
        check_text(path, raw)
        if path != "/generate":
            assert events(raw)[-1]["usage"]["completion_tokens"] == TOKENS
        state = await router.until(idle)
        assert (state["retried"], state["resumed"]) == (0, 0)
        assert state["moves"]["outcomes"] == [
            {"why": "asked", "kind": "replay", "outcome": "moved", "count": 3}
        ]
        assert state["moves"]["under_way"] == 0 and state["moves"]["tokens"] > 0
        rows = {row["name"]: row for row in state["workers"]}
        decodes = [rows["decode-0"], rows["decode-1"]]
        assert sum(row["moved_in"] for row in decodes) == 3
        assert sum(row["moved_out"] for row in decodes) == 3
        assert sum(row["completed"] for row in decodes) == 1
        assert sum(row["failed"] for row in rows.values()) == 0
        async with router.session.get(router.url + "/metrics") as response:
            text = await response.text()
        one = 'toolkit_router_moves_total{kind="replay",outcome="moved",why="asked"} 3.0'
        assert one in text
        assert "toolkit_router_move_stall_seconds_count 3.0" in text


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_each_of_several_samples_moves_by_itself(path: Any) -> None:
    async with cluster() as router:
        body = {**bodies(TOKENS, rid="r")[path], "n": 2}
        task = asyncio.ensure_future(post(router, path, body))
        await begun(router, 2)
        told = await migrate(router, rid="r", to=None)
        assert [(m["rid"], m["outcome"]) for m in told["moves"]] == [
            ("r_0", "moved"), ("r_1", "moved"),
        ]  # fmt: skip
        told = await migrate(router, rid="r_1")
        assert (told["moved"], told["moves"][0]["rid"]) == (1, "r_1")
        status, raw = await task
        assert status == 200 and HALF not in raw.decode()
        for index in (0, 1):
            mine = [c for e in events(raw) for c in e["choices"] if c["index"] == index]
            said = [c.get("text") or c.get("delta", {}).get("content") or "" for c in mine]
            assert "".join(said) == expected(prompt_of(path), TOKENS)
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
        await router.until(idle)


async def test_plain_workers_move_requests_too() -> None:
    async with cluster(prefills=0, decodes=0, plains=2) as router:
        async with streaming(router) as (where, task):
            told = await migrate(router, rid="r")
            assert told["moves"][0]["to"] != where and told["moved"] == 1
            _, raw = await task
        check_text(CHAT, raw)
        await router.until(idle)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["br0", "level", "round_robin"])
@pytest.mark.parametrize("dispatch", ["late", "concurrent"])
async def test_the_place_that_is_kept_is_taken_whatever_the_policy(
    policy: str, dispatch: str
) -> None:
    if dispatch == "concurrent" and policy != "round_robin":
        pytest.skip("a pool needs late dispatch")
    config = {"decode_policy": policy, "dispatch": dispatch}
    async with cluster(decodes=3, config=config) as router:
        async with streaming(router) as (_, task):
            for target in ("decode-0", "decode-1", "decode-2", "decode-0"):
                if place(await router.state()) == [target]:
                    continue
                told = await migrate(router, rid="r", to=target)
                assert told["moves"][0]["to"] == target, told
                assert place(await router.state()) == [target]
            _, raw = await task
        check_text(CHAT, raw)
        await router.until(idle)


async def test_the_longest_of_a_worker_move_three_at_a_time() -> None:
    args = {"prefill": ["--prefill-ms", "60"]}
    async with cluster(role_args=args) as router:
        await post(router, "/admin/drain", {"worker": "decode-1", "deadline_s": 0}, admin=True)
        tasks = [
            asyncio.ensure_future(post(router, CHAT, bodies(400, rid=f"r{i}")[CHAT]))
            for i in range(7)
        ]
        await begun(router, 7)
        await post(router, "/admin/drain", {"worker": "decode-1", "undo": True}, admin=True)
        order = asyncio.ensure_future(
            migrate(router, **{"from": "decode-0", "to": "decode-1", "count": 5})
        )
        most = 0
        while not order.done():
            most = max(most, (await router.state())["moves"]["under_way"])
        told = await order
        assert (told["moved"], most) == (5, 3)
        state = await router.state()
        assert place(state).count("decode-1") == 5
        for task in tasks:
            _, raw = await task
            check_text(CHAT, raw, 400)
        await router.until(idle)


async def test_a_second_move_of_a_request_is_refused_while_the_first_is_under_way() -> None:
    async with cluster(decodes=3, role_args={"prefill": ["--prefill-ms", "80"]}) as router:
        async with streaming(router) as (_, task):
            first, second = await asyncio.gather(migrate(router, rid="r"), migrate(router, rid="r"))
            assert {first["moved"], second["moved"]} == {1, 0}
            late = first if second["moved"] else second
            assert late["moves"][0]["outcome"] == "kept"
            assert "being moved" in late["moves"][0]["reason"]
            _, raw = await task
        check_text(CHAT, raw)


Fault = Callable[[Cluster, str], Awaitable[None]]


async def _kill(router: Cluster, name: str) -> None:
    router.worker(name).kill()


async def _refuse(router: Cluster, name: str) -> None:
    await router.make(name, "500")


async def _full(router: Cluster, name: str) -> None:
    await router.make(name, "503")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_kill, _refuse, _full])
async def test_a_target_that_fails_while_its_place_is_kept_costs_nothing_but_time(
    fault: Fault,
) -> None:
    async with cluster(role_args={"prefill": ["--prefill-ms", "250"]}) as router:
        async with streaming(router) as (where, task):
            order = asyncio.ensure_future(migrate(router, rid="r", to=other(where)))
            await router.until(lambda s: s["moves"]["under_way"] == 1)
            await asyncio.sleep(0.08)  # its source has let go of it
            await fault(router, other(where))
            (move,) = (await order)["moves"]
            assert move["outcome"] == "kept" and other(where) in move["reason"]
            _, raw = await task
        check_text(CHAT, raw)
        await router.until(lambda s: place(s) == [])


async def test_a_prefill_that_dies_in_a_move_is_replaced() -> None:
    slow = {"prefill": ["--prefill-ms", "300"]}
    async with cluster(prefills=2, role_args=slow) as router:
        async with streaming(router) as (where, task):
            order = asyncio.ensure_future(migrate(router, rid="r", to=other(where)))

            def prefilling(state: dict[str, Any]) -> bool:
                (dead,) = busy(state) or ("",)
                return state["moves"]["under_way"] == 1 and bool(dead)

            def busy(state: dict[str, Any]) -> list[str]:
                rows = [row for row in state["workers"] if row["role"] == "prefill"]
                return [row["name"] for row in rows if row["inflight"]]

            router.worker(busy(await router.until(prefilling))[0]).kill()
            (move,) = (await order)["moves"]
            assert (move["outcome"], move["to"]) == ("moved", other(where))
            _, raw = await task
        check_text(CHAT, raw)


async def test_a_target_that_dies_after_the_move_is_an_ordinary_death() -> None:
    async with cluster() as router:
        async with streaming(router, tokens=150) as (where, task):
            await migrate(router, rid="r", to=other(where))
            router.worker(other(where)).kill()
            _, raw = await task
        check_text(CHAT, raw, 150)
        assert (await router.state())["resumed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["die", "deaf"])
async def test_a_source_that_dies_or_does_not_hear_is_left_as_it_is(how: str) -> None:
    """`die`: at the very abort."""
    async with cluster(role_args={"decode": ["--token-ms", "4"]}) as router:
        async with streaming(router, tokens=900, on_abort=how) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (move["outcome"], move["to"]) == ("moved", other(where))
            state = await router.state()
            assert (state["resumed"], state["retried"]) == (0, 0)
            _, raw = await task
        check_text(CHAT, raw, 900)
        await router.until(lambda s: place(s) == [])


async def test_a_source_whose_connection_breaks_meanwhile_is_not_blamed() -> None:
    async with cluster(role_args={"prefill": ["--prefill-ms", "150"]}) as router:
        async with streaming(router) as (where, task):
            order = asyncio.ensure_future(migrate(router, rid="r", to=other(where)))
            await router.until(lambda s: s["moves"]["under_way"] == 1)
            await asyncio.sleep(0.05)
            router.worker(where).kill()
            assert (await order)["moved"] == 1
            _, raw = await task
        check_text(CHAT, raw)
        state = await router.state()
        assert (state["resumed"], state["retried"]) == (0, 0)


@pytest.mark.parametrize("path", list(bodies(1)))
async def test_what_ends_while_it_is_to_move_ends_as_ever(path: Any) -> None:
    async with cluster() as router:
        async with streaming(router, path, on_abort="finish") as (_, task):
            (move,) = (await migrate(router, rid="r"))["moves"]
            assert move["outcome"] == "ended"
            _, raw = await task
        check_text(path, raw)
        state = await router.until(idle)
        assert sum(row["completed"] for row in state["workers"]) == 2  # one is the prefill's


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing_behind() -> None:
    async with cluster(role_args={"prefill": ["--prefill-ms", "150"]}) as router:
        async with streaming(router) as (_, task):
            order = asyncio.ensure_future(migrate(router, rid="r"))
            await router.until(lambda s: s["moves"]["under_way"] == 1)
            await asyncio.sleep(0.05)
            task.cancel()
            (move,) = (await order)["moves"]
            assert move["outcome"] == "ended" and "client" in move["reason"]
        state = await router.until(idle)
        assert state["moves"]["under_way"] == 0
        await router.until_stats(lambda told: all(not s["running"] for s in told.values()))


async def test_who_asked_for_a_move_may_go_away() -> None:
    async with cluster(role_args={"prefill": ["--prefill-ms", "150"]}) as router:
        async with streaming(router) as (where, task):
            order = asyncio.ensure_future(migrate(router, rid="r"))
            await router.until(lambda s: s["moves"]["under_way"] == 1)
            order.cancel()
            await router.until(lambda s: place(s) == [other(where)])
            _, raw = await task
        check_text(CHAT, raw)
        state = await router.until(idle)
        assert state["moves"]["outcomes"][0]["outcome"] == "moved"


@pytest.mark.slow
async def test_a_client_that_is_slow_to_read_does_not_hold_a_move_up() -> None:
    async with cluster(worker_args=["--resume"]) as router:
        body = bodies(2500, rid="r")["/generate"]
        async with router.session.post(router.url + "/generate", json=body) as response:
            await asyncio.sleep(0.5)  # all buffers are full
            order = asyncio.ensure_future(migrate(router, rid="r"))
            await router.until_stats(
                lambda told: sum(told[name]["posts"] for name in ("decode-0", "decode-1")) == 2
            )
            # Nobody reads, so it is seen to go on only once the client reads on.
            raw = await response.read()
            assert (await order)["moved"] == 1
        check_text("/generate", raw, 2500)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"logprobs": True}, "logprobs: those of the first tokens"),
        ({"seed": 5, "temperature": 0.7}, "random state"),
        ({"stream": False}, "does not stream"),
    ],
)
async def test_what_cannot_move_stays_and_the_answer_says_why(body: Any, reason: str) -> None:
    async with cluster() as router:
        async with streaming(router, **body) as (where, task):
            (move,) = (await migrate(router, rid="r"))["moves"]
            assert move["outcome"] == "kept" and reason in move["reason"]
            told = await migrate(router, **{"from": where})
            assert told["moves"] == [] and list(told["stays"]) == [move["reason"]]
            status, _ = await task
        assert status == 200
        await router.until(idle)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"config": {"worker_api_key_env": None}}, "worker_api_key_env"),
        ({"worker_args": ["--token-ms", "4"]}, "no patch resume"),
        ({"worker_args": [*ARGS, "--stays", "recurrent state"]}, "recurrent state"),
        ({"decodes": 1}, "no other worker"),
    ],
)
async def test_where_nothing_can_move_the_answer_says_why(options: Any, reason: str) -> None:
    async with cluster(**options) as router:
        async with streaming(router) as (_, task):
            (move,) = (await migrate(router, rid="r"))["moves"]
            assert move["outcome"] == "kept" and reason in move["reason"]
            _, raw = await task
        check_text(CHAT, raw)


async def test_a_target_must_be_there_and_have_room() -> None:
    one_slot = {"decode": ["--slots", "1"]}
    async with cluster(decodes=3, role_args=one_slot) as router, streaming(router) as (where, _):
        one, two = (f"decode-{i}" for i in range(3) if f"decode-{i}" != where)
        others = [asyncio.ensure_future(post(router, CHAT, bodies(400)[CHAT])) for _ in "12"]
        await begun(router, 3)

        async def why(**body: Any) -> str:
            (move,) = (await migrate(router, rid="r", **body))["moves"]
            assert move["outcome"] == "kept"
            return str(move["reason"])

        assert "no other worker has a slot" in await why()
        assert await why(to=one) == f"{one} has no free slot"
        assert "already" in await why(to=where)
        router.worker(two).kill()
        await router.until(lambda s: sum(not w["healthy"] for w in s["workers"]) == 1)
        assert await why(to=two) == f"{two} is down"
        await asyncio.gather(*others)


async def test_the_kind_of_moves_is_switched_while_running() -> None:
    async with cluster() as router:
        for by, status in (("replay", 200), ("direct", 200), ("auto", 200), ("magic", 400)):
            answered, raw = await post(router, "/admin/policy", {"moves": by}, admin=True)
            assert answered == status, raw
            now = (await router.state())["moves"]["kind"]
            assert now == (by if status == 200 else "auto")
        await post(router, "/admin/policy", {"moves": "direct"}, admin=True)
        async with streaming(router) as (_, task):  # these stand-ins cannot
            (move,) = (await migrate(router, rid="r"))["moves"]
            assert move["outcome"] == "kept" and "move_order" in move["reason"]
            await task


async def test_only_the_admin_may_move_requests() -> None:
    async with cluster(decodes=1) as router:
        status, _ = await post(router, "/admin/migrate", {"rid": "r"})
        assert status == 403
        async with router.session.get(router.admin + "/admin/migrate") as response:
            assert (response.status, response.headers["Allow"]) == (405, "OPTIONS, POST")
            assert (await response.json())["error"]["code"] == 405
