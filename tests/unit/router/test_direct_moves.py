"""A router over stand-in workers: requests whose KV goes straight to another decode worker, and
what becomes of them when somebody fails at any step of it."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.standin.cluster import Cluster
from tests.standin.moving import LONG
from tests.unit.router.cluster_calls import bodies, events, idle, post
from tests.unit.router.test_moves import (
    CHAT,
    begun,
    check_text,
    migrate,
    other,
    place,
    streaming,
)
from toolkit.router.held_back import HeldBack
from toolkit.router.resume import split_events

pytestmark = pytest.mark.touched("router")

SOURCE_FAULTS = ["refused", "unable", "slow", "replay", "failed", "cut_fail", "404"]
ARGS = ["--resume", "--moves", "--token-ms", "4"]
SENDS = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1}


def cluster(**options: Any) -> Cluster:
    config = {"moves": "direct", **options.pop("config", {})}
    role_config = {"decode": SENDS}
    return Cluster(worker_args=ARGS, role_config=role_config, config=config, **options)


@pytest.mark.parametrize("path", list(bodies(1)))
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
async def test_a_stream_that_moves_to_and_fro_says_what_it_would_have_said(
    path: Any, first_token: str
) -> None:
    first = ["--first-token"] if first_token == "prefill" else []
    async with cluster(role_args={"prefill": first}) as router:
        extra = {"stream_options": {"include_usage": True}} if path != "/generate" else {}
        async with streaming(router, path, **extra) as (where, task):  # type: ignore[arg-type]
            for _ in range(4):
                where = other(where)
                (move,) = (await migrate(router, rid="r", to=where))["moves"]
                assert (move["outcome"], move["kind"], move["to"]) == ("moved", "direct", where)
                assert place(await router.state()) == [where]
            status, raw = await task
        assert status == 200
        check_text(path, raw)
        if path != "/generate":
            assert events(raw)[-1]["usage"]["completion_tokens"] == 250
        state = await router.until(idle)
        assert (state["retried"], state["resumed"]) == (0, 0)
        rows = [row for row in state["workers"] if row["role"] == "decode"]
        assert sum(row["moved_in"] for row in rows) == 4
        assert sum(row["moved_out"] for row in rows) == 4
        assert sum(row["completed"] for row in rows) == 1
        assert sum(row["failed"] for row in rows) == 0

        def dropped(stats: dict[str, Any]) -> bool:
            return not any(each["running"] for each in stats.values())

        await router.until_stats(dropped)


@pytest.mark.slow
@pytest.mark.parametrize("how", SOURCE_FAULTS)
async def test_a_source_that_does_not_send_goes_on_itself(how: Any) -> None:
    """With `cut_fail` the target says nothing either: it has got nothing."""
    async with cluster() as router:
        extra = {"on_move": how, "on_take": "hang"}
        async with streaming(router, **extra) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["outcome"] == "kept" and move["reason"]
            assert place(await router.state()) == [where]
            _, raw = await task
        check_text(CHAT, raw)
        state = await router.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)
        target = await router.stats(other(where))
        assert len(target["aborted"]) == 1  # it would wait for KV that does not come


@pytest.mark.slow
@pytest.mark.parametrize("how", SOURCE_FAULTS)
async def test_another_kind_follows_only_where_the_source_is_not_able(how: Any) -> None:
    """A target that does not answer gets nothing by replay either: its client would wait for it."""
    async with cluster(config={"moves": "auto"}) as router:
        async with streaming(router, tokens=600, on_move=how, on_take="hang") as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            by_replay = how in ("refused", "unable", "replay", "404")
            assert move["outcome"] == ("moved" if by_replay else "kept"), move
            assert move.get("kind", "") == ("replay" if by_replay else "") or not by_replay
            _, raw = await task
        check_text(CHAT, raw, 600)
        state = await router.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)


@pytest.mark.parametrize("how", ["refuse", "die", "error", "die_late"])
async def test_without_its_target_the_source_goes_on(how: str) -> None:
    async with cluster() as router:
        async with streaming(router, on_take=how) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["outcome"] == "kept" and other(where) in move["reason"]
            assert place(await router.state()) == [where]
            _, raw = await task
        check_text(CHAT, raw)
        state = await router.until(lambda s: place(s) == [])
        assert (state["resumed"], state["retried"]) == (0, 0)


async def test_a_source_that_never_says_anything_does_not_hold_its_client_up() -> None:
    """As one that has put the request aside just then, and goes on with it later."""
    async with cluster() as router:
        extra = {"on_move": "deaf", "on_take": "hang"}
        async with streaming(router, tokens=400, **extra) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["outcome"] == "ended"  # its stream, at the usual pace
            _, raw = await task
        check_text(CHAT, raw, 400)
        await router.until(idle)


async def test_a_target_is_told_the_tokens_that_its_source_generates_meanwhile() -> None:
    """Only the last ones come with the KV."""
    async with cluster() as router:
        async with streaming(router, tokens=600, on_move="long") as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["outcome"] == "moved", move
            told = (await router.stats(other(where)))["ids_told"]
            assert LONG - 60 <= told <= LONG + 1, told
            _, raw = await task
        check_text(CHAT, raw, 600)


@pytest.mark.slow
async def test_what_moved_and_what_did_not_is_told_with_its_figures_and_its_cause() -> None:
    async with cluster() as router:
        async with streaming(router, tokens=600) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["copied"]["rounds"] == 2 and move["copied"]["mb_s"] == 1000.0
            await task
        async with streaming(router, tokens=600, on_move="slow") as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (move["outcome"], move["cause"]) == ("kept", "slow")
            await task
        async with streaming(router, tokens=600, on_take="refuse") as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (move["outcome"], move["cause"]) == ("kept", "target")
            await task
        kept = (await router.state())["moves"]["kept"]
        assert kept == [
            {"kind": "direct", "cause": "slow", "count": 1},
            {"kind": "direct", "cause": "target", "count": 1},
        ]
        async with router.session.get(router.url + "/metrics") as response:
            text = await response.text()
        assert 'toolkit_router_moves_kept_total{cause="slow",kind="direct"} 1.0' in text


@pytest.mark.slow
async def test_a_target_that_says_nothing_after_the_cut_is_waited_for_and_left() -> None:
    async with cluster() as router:
        async with streaming(router, tokens=1200, on_take="hang") as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (move["outcome"], move["reason"]) == ("kept", "it took too long")
            _, raw = await task
        check_text(CHAT, raw, 1200)
        await router.until(idle)


@pytest.mark.parametrize("how", ["die", "cut_die"])
async def test_a_source_that_dies_loses_nothing(how: str) -> None:
    """After the cut the target has it all; before that another worker goes on with what the client
    has."""
    async with cluster(decodes=3) as router:
        async with streaming(router, on_move=how) as (where, task):
            target = next(f"decode-{n}" for n in range(3) if f"decode-{n}" != where)
            (move,) = (await migrate(router, rid="r", to=target))["moves"]
            assert move["outcome"] == "moved"
            _, raw = await task
        check_text(CHAT, raw)
        state = await router.until(lambda s: place(s) == [])
        assert state["resumed"] == (1 if how == "die" else 0)


async def test_a_target_that_dies_after_the_move_is_an_ordinary_death() -> None:
    async with cluster() as router:
        async with streaming(router) as (where, task):
            (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert move["outcome"] == "moved"
            router.worker(other(where)).kill()
            _, raw = await task
        check_text(CHAT, raw)
        assert (await router.state())["resumed"] == 1


async def test_what_ends_before_the_cut_ends_as_ever() -> None:
    async with cluster() as router:
        async with streaming(router, tokens=60) as (_, task):
            while not task.done():  # the last of them finds it at its end, or gone
                order = {"rid": "r", "to": None}
                status, raw = await post(router, "/admin/migrate", order, admin=True)
                assert status == 200 or b"any more" in raw, raw
            _, raw = await task
        check_text(CHAT, raw, 60)
        state = await router.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)


async def test_a_client_that_goes_away_in_between_leaves_nothing_behind() -> None:
    async with cluster() as router:
        for wait in (0.0, 0.02, 0.05, 0.08, 0.12):
            async with streaming(router, tokens=2000) as (where, task):
                order = asyncio.ensure_future(migrate(router, rid="r", to=other(where)))
                await router.until(lambda s: s["moves"]["under_way"] == 1)
                await asyncio.sleep(wait)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert (await order)["moves"][0]["outcome"] in ("moved", "ended")
            await router.until(idle)
        await router.until_stats(lambda s: not any(each["running"] for each in s.values()))


async def test_directly_where_that_is_possible() -> None:
    """`auto`: the next kind takes over, and a rank that has said that it can send nothing is not
    asked again."""
    async with cluster(config={"moves": "auto"}) as router:
        async with streaming(router, tokens=600, on_move="unable") as (where, task):
            (first,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (first["outcome"], first["kind"]) == ("moved", "replay")
            await migrate(router, rid="r", to=where)
            (third,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (third["outcome"], third["kind"]) == ("moved", "replay")
            told = (await router.state())["moves"]["outcomes"]
            kept = [o["count"] for o in told if (o["kind"], o["outcome"]) == ("direct", "kept")]
            assert kept == [2]  # each rank once
            _, raw = await task
        check_text(CHAT, raw, 600)


@pytest.mark.parametrize("moves", ["direct", "auto"])
async def test_what_ends_sooner_than_its_kv_is_sent_is_not_sent(moves: str) -> None:
    """By what the source has measured: it stays, or is computed again where that is allowed."""
    async with cluster(config={"moves": moves}) as router:
        async with streaming(router, tokens=600, on_move="crawl") as (where, task):
            (first,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            assert (first["outcome"], first["kind"]) == ("moved", "direct")
            (back,) = (await migrate(router, rid="r", to=where))["moves"]
            assert (back["outcome"], back["kind"]) == ("moved", "direct"), back  # not measured
            (third,) = (await migrate(router, rid="r", to=other(where)))["moves"]
            if moves == "direct":
                assert third["outcome"] == "kept", third
                assert "it ends sooner than its KV is sent" in third["reason"]
            else:
                assert (third["outcome"], third["kind"]) == ("moved", "replay"), third
            _, raw = await task
        check_text(CHAT, raw, 600)


async def test_workers_that_cannot_are_named() -> None:
    no_port = Cluster(worker_args=ARGS, config={"moves": "direct"})
    without = Cluster(worker_args=ARGS[:1] + ARGS[2:], config={"moves": "direct"})
    for router, says in ((no_port, "no bootstrap_port"), (without, "has no patch move_order")):
        async with router:
            async with streaming(router) as (where, task):
                (move,) = (await migrate(router, rid="r", to=other(where)))["moves"]
                assert move["outcome"] == "kept" and says in move["reason"]
                _, raw = await task
            check_text(CHAT, raw)


@pytest.mark.slow
async def test_many_move_at_once() -> None:
    async with cluster() as router:
        tasks = [
            asyncio.ensure_future(post(router, CHAT, bodies(400, rid=f"r{i}")[CHAT]))
            for i in range(8)
        ]
        await begun(router, 8)
        moved = 0

        async def order(rid: str) -> int:
            """How many moved: it may end between the look at its task and the order."""
            status, raw = await post(router, "/admin/migrate", {"rid": rid}, admin=True)
            assert status in (200, 404), raw
            return int(json.loads(raw)["moved"]) if status == 200 else 0

        while not any(task.done() for task in tasks):
            moved += sum(await asyncio.gather(*(order(f"r{i}") for i in range(8))))
        for task in tasks:
            _, raw = await task
            check_text(CHAT, raw, 400)
        assert moved >= 8  # of a busy machine
        state = await router.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)


EVENTS = st.lists(st.integers(0, 3), max_size=12)


@given(EVENTS, st.integers(0, 20), st.data())
def test_what_is_held_back_is_the_rest(sizes: list[int], most: int, data: st.DataObject) -> None:
    """However the events come: no more than `most` tokens pass, and none is lost."""
    whole = [
        (b": " + b" ".join(b"7" for _ in range(size)) + b"\n" if size else b"")
        + b"data: {%d}\n\n" % number
        for number, size in enumerate(sizes)
    ]
    held, passed, left = HeldBack(most), b"", list(whole)
    while left:
        count = data.draw(st.integers(1, len(left)))
        passed += held.take(b"".join(left[:count]))
        left = left[count:]
    assert passed + b"".join(held.events) == b"".join(whole)
    got = split_events(passed)
    assert sum(sizes[: len(got)]) <= most
    if held.events:
        assert sum(sizes[: len(got) + 1]) > most
