"""Routers over the same stand-in workers: a drain that one of them is told is that of all, or of
none."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import post
from tests.unit.router.test_drains import ARGS, all_said, begin, drain, row
from tests.unit.router.test_notices import ADMIN, ENV, both, keyed, signal_all
from toolkit.contract.headers import ROUTER
from toolkit.contract.notices import ANSWER, Notice
from toolkit.contract.paths import EVENTS, NOTICES
from toolkit.contract.variables import ROUTER_NAME_VARIABLE
from toolkit.decide.drain_orders import DrainOrder
from toolkit.router.drains import TRIAL_S
from toolkit.router.keys import Caller, proof_of
from toolkit.router.others.drains import DRAIN, SILENT_S, DrainAnswer, DrainTold

LONG = 2000
"""Tokens of a stream that still runs when two routers have been looked at, on a full machine."""


def named(name: str, **options: Any) -> Cluster:
    """A router that calls itself so."""
    env = {ROUTER_NAME_VARIABLE: name, **options.pop("env", {})}
    return Cluster(env=env, worker_args=ARGS, **options)


async def held(at: Cluster) -> set[str]:
    return {row["name"] for row in (await at.state())["workers"] if row["held"]}


async def hold(at: Cluster, *names: str) -> None:
    """Until that router holds these workers, and no others."""

    def so(state: dict[str, Any]) -> bool:
        return {row["name"] for row in state["workers"] if row["held"]} == set(names)

    await at.until(so)


async def run_at(at: Cluster, worker: str, count: int) -> None:
    await at.until(lambda state: row(state, worker)["inflight"] == count)


async def refused(at: Cluster, worker: str, **options: Any) -> str:
    status, raw = await post(at, "/admin/drain", {"worker": worker}, **{"admin": True, **options})
    assert status == 409, raw
    return str(json.loads(raw)["error"]["message"])


@pytest.mark.parametrize("relays", [1, 2])
async def test_a_worker_is_emptied_of_the_requests_of_all_routers(relays: int) -> None:
    config = {"relays": relays, "decode_policy": "round_robin"}
    async with (
        named("a", decodes=3, config=config) as one,
        named("b", beside=one, config=config) as other,
    ):
        await both(one, other)
        tasks = begin(one, 6, LONG) + begin(other, 6, LONG)
        for each in (one, other):
            await run_at(each, "decode-1", 2)
        told = await drain(one, "decode-1")
        assert (told["drained"], told["moved"], told["left"], told["lost"]) == (True, 4, 0, 0)
        assert told["routers"] == {"a": 0, "b": 0} and "unanswered" not in told
        assert row(await other.state(), "decode-1")["inflight"] == 0
        assert await held(one) == await held(other) == {"decode-1"}
        served = (await one.stats("decode-1"))["posts"]
        tasks += begin(other, 6, LONG)
        await all_said(tasks, LONG)
        assert (await one.stats("decode-1"))["posts"] == served
        told = await drain(other, "decode-1", undo=True)  # at whichever
        assert told == {"worker": "decode-1", "held": False, "routers": {"a": 0, "b": 0}}
        assert await held(one) == await held(other) == set()
        await all_said(begin(one, 6, 20), 20)
        assert (await one.stats("decode-1"))["posts"] > served


async def test_what_stays_at_another_router_is_waited_for_and_told() -> None:
    config = {"decode_policy": "round_robin"}
    async with (
        named("a", config=config) as one,
        named("b", beside=one, config=config) as other,
    ):
        await both(one, other)
        tasks = begin(other, 2, 400, logprobs=True)
        await run_at(other, "decode-1", 1)
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        told = await drain(one, "decode-1", deadline_s=0.2)
        assert time.monotonic() - begun < 1.5
        assert (told["held"], told["drained"], told["left"]) == (True, False, 1)
        assert told["routers"] == {"a": 0, "b": 1} and "logprobs" in next(iter(told["stays"]))
        told = await drain(one, "decode-1")
        assert (told["drained"], told["routers"]) == (True, {"a": 0, "b": 0})
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]


async def test_an_undo_ends_the_drain_of_whoever_was_told() -> None:
    config = {"decode_policy": "round_robin"}
    async with (
        named("a", config=config) as one,
        named("b", beside=one, config=config) as other,
    ):
        await both(one, other)
        tasks = begin(other, 2, LONG, logprobs=True)
        await run_at(other, "decode-1", 1)
        draining = asyncio.create_task(drain(one, "decode-1"))
        await hold(other, "decode-1")
        await drain(other, "decode-1", undo=True)
        told = await asyncio.wait_for(draining, 2)
        assert (told["held"], told["drained"]) == (False, False)
        assert await held(one) == await held(other) == set()
        for task in tasks:
            task.cancel()


def only(one: Cluster, *names: str, **renamed: str) -> list[dict[str, Any]]:
    """Configurations of some of the workers."""
    known = [worker.config() for worker in one.workers if worker.name in names]
    return [entry | {"name": renamed.get(entry["name"].replace("-", "_"), entry["name"])}
            for entry in known]  # fmt: skip


async def test_where_one_router_cannot_do_without_none_holds_it() -> None:
    """The other one knows one decode worker only, and has it under the name that it has here."""
    async with named("a", decodes=3) as one:
        some = only(one, "prefill-0", "decode-1")
        async with named("b", beside=one, config={"workers": some}) as other:
            await one.until(lambda state: row(state, "decode-1").get("routers") == 2)
            why = await refused(one, "decode-1")
            assert "router b refuses" in why and "the last decode worker" in why
            assert await held(one) == await held(other) == set()
            assert (await drain(one, "decode-2"))["drained"], "the other one has none of that name"
            assert await held(one) == {"decode-2"}
            # What was held before stays so.
            assert (await drain(one, "decode-2"))["drained"]
            assert "the last decode worker" in await refused(other, "decode-1")
            assert (await held(one), await held(other)) == ({"decode-2"}, set())


async def test_a_worker_that_goes_by_another_name_there_is_not_drained() -> None:
    async with named("a", decodes=3) as one:
        theirs = only(one, "prefill-0", "decode-0", "decode-1", decode_1="mine")
        async with named("b", beside=one, config={"workers": theirs}) as other:
            await one.until(lambda state: row(state, "decode-1").get("routers") == 2)
            assert "another name" in await refused(one, "decode-1")
            assert await held(one) == await held(other) == set()


async def test_two_that_are_drained_at_once_at_two_routers_are_not_both() -> None:
    async with named("a") as one, named("b", beside=one) as other:
        await both(one, other)
        said = await asyncio.gather(
            post(one, "/admin/drain", {"worker": "decode-0"}, admin=True),
            post(other, "/admin/drain", {"worker": "decode-1"}, admin=True),
        )
        statuses = sorted(status for status, _ in said)
        assert statuses in ([200, 409], [409, 409])
        left = await held(one)
        assert len(left) == statuses.count(200)
        await hold(other, *left)


async def test_a_router_that_comes_later_learns_of_it_from_whoever_knows() -> None:
    async with named("a", decodes=3) as one, named("b", beside=one) as other:
        await both(one, other)
        await drain(one, "decode-1")
        await drain(one, "decode-2")
        await drain(other, "decode-2", undo=True)
        assert one.router is not None
        signal_all(one, signal.SIGKILL)  # it was told, and is gone
        one.router.wait()
        async with named("c", beside=one) as later:
            await hold(later, "decode-1")
            await drain(later, "decode-1", undo=True)
            await hold(other)


async def test_a_router_that_hangs_is_named_and_learns_of_it_when_it_goes_on() -> None:
    config = {"silent_s": 30, "hung_s": 60}
    async with named("a", config=config) as one, named("b", beside=one, config=config) as other:
        await both(one, other)
        signal_all(other, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            told = await drain(one, "decode-1")
            assert time.monotonic() - begun < SILENT_S + 4
            assert (told["held"], told["drained"], told["left"]) == (True, False, 0)
            assert told["unanswered"] == ["b"] and told["routers"] == {"a": 0}
        finally:
            signal_all(other, signal.SIGCONT)
        await hold(other, "decode-1")
        assert (await drain(one, "decode-1"))["drained"]


async def test_a_router_that_was_told_and_dies_leaves_the_others_to_go_on() -> None:
    config = {"decode_policy": "round_robin"}
    async with (
        named("a", config=config) as one,
        named("b", beside=one, config=config) as other,
    ):
        await both(one, other)
        tasks = begin(other, 2, 400, logprobs=True)
        await run_at(other, "decode-1", 1)
        draining = asyncio.create_task(drain(one, "decode-1"))
        await hold(other, "decode-1")
        assert one.router is not None
        signal_all(one, signal.SIGKILL)
        one.router.wait()
        await asyncio.wait([draining])
        assert draining.exception() is not None
        told = await drain(other, "decode-1")  # the operator asks another one
        assert (told["drained"], told["lost"]) == (True, 0)
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]


class Forger:
    """Listens to a worker as a router does, with the workers' key and no other."""

    def __init__(self, at: Cluster, stream: Any) -> None:
        self._at = at
        self._stream = stream
        self._number = 0

    async def heard(self, kind: str) -> dict[str, Any]:
        """The next notice of a kind."""
        while True:
            event = json.loads(await self._stream.content.readline())
            if event["type"] == "notice" and event["kind"] == kind:
                found: dict[str, Any] = event
                return found

    async def say(self, to: str, told: DrainTold) -> DrainAnswer:
        """What the router answers to that."""
        self._number += 1
        body = msgspec.json.encode(told).decode()
        notice = Notice("forger", f"n{self._number}", DRAIN, to, body=body)
        url = self._at.worker("decode-0").url + NOTICES
        async with self._at.session.post(url, data=msgspec.json.encode(notice)) as answer:
            assert (await answer.json())["told"] == [to]
        said = await self.heard(ANSWER)
        assert said["re"] == notice.id
        return msgspec.json.decode(said["body"], type=DrainAnswer)


@asynccontextmanager
async def forger(at: Cluster) -> AsyncIterator[Forger]:
    url = at.worker("decode-0").url + EVENTS
    async with at.session.get(url, headers={ROUTER: "forger"}) as stream:
        await at.until(lambda state: row(state, "decode-0").get("routers", 1) > 1)
        yield Forger(at, stream)


def now_ms(plus_s: float = 0.0) -> int:
    return round((time.time() + plus_s) * 1e3)


async def test_what_nobody_says_more_of_is_let_go_by_itself() -> None:
    """A router has had another one try, and has died."""
    async with named("a") as one, forger(one) as dies:
        order = DrainOrder("decode-1", True, now_ms(), 30.0)
        assert (await dies.say("a", DrainTold("try", (order,)))).refused == ""
        assert await held(one) == {"decode-1"}
        begun = time.monotonic()
        await hold(one)
        assert TRIAL_S - 1 < time.monotonic() - begun < TRIAL_S + 1
        assert (await dies.say("a", DrainTold("keep", (order,)))).refused == ""
        await asyncio.sleep(0.1)
        assert await held(one) == {"decode-1"}


async def test_who_has_the_workers_key_alone_drains_nothing_where_an_admin_has_one(
    tmp_path: Path,
) -> None:
    config = keyed(tmp_path, "alice")
    digest = Caller(admin=True, digest=b"guessed")
    async with named("a", decodes=3, config=config, env=ENV) as one, forger(one) as taken:
        order = DrainOrder("decode-1", True, now_ms())
        proven = msgspec.structs.replace(order, proof=proof_of(digest, order.signed))
        for each in (order, proven):
            for told in (DrainTold("try", (each,)), DrainTold("keep", (each,))):
                assert "the admin key there" in (await taken.say("a", told)).refused
        assert await held(one) == set()


async def test_an_order_that_was_undone_cannot_be_said_again(tmp_path: Path) -> None:
    config = keyed(tmp_path, "alice")
    async with named("a", decodes=3, config=config, env=ENV) as one, forger(one) as taken:
        one.admin_port = one.port
        body = {"worker": "decode-1", "deadline_s": 0}
        asking = asyncio.create_task(post(one, "/admin/drain", body, headers=ADMIN))
        order = msgspec.json.decode((await taken.heard(DRAIN))["body"], type=DrainTold).orders[0]
        assert (order.worker, order.on, bool(order.proof)) == ("decode-1", True, True)
        assert (await asking)[0] == 200
        again = DrainTold("keep", (order,))
        assert (await taken.say("a", again)).refused == "", "it is a true one"
        undo = {"worker": "decode-1", "undo": True}
        assert (await post(one, "/admin/drain", undo, headers=ADMIN))[0] == 200
        await taken.say("a", again)
        other = msgspec.structs.replace(order, at=now_ms(60))
        assert (await taken.say("a", DrainTold("keep", (other,)))).refused
        assert await held(one) == set()


async def test_an_order_of_a_clock_that_is_wrong_is_refused() -> None:
    async with named("a", decodes=3) as one, forger(one) as other:
        order = DrainOrder("decode-1", True, now_ms(2 * 3600))
        assert "clock" in (await other.say("a", DrainTold("keep", (order,)))).refused
        assert await held(one) == set()


@pytest.mark.parametrize("theirs", ["another", None])
async def test_routers_with_other_admin_keys_agree_on_nothing(
    tmp_path: Path, theirs: str | None
) -> None:
    config = keyed(tmp_path, "alice")
    their_config = config if theirs else {}
    async with (
        named("a", decodes=3, config=config, env=ENV) as one,
        named("b", beside=one, config=their_config, env={"TK_ADMIN": theirs or ""}) as other,
    ):
        one.admin_port = one.port
        await both(one, other)
        options: dict[str, Any] = {"admin": True}
        if theirs:
            other.admin_port = other.port
            options = {"headers": {"Authorization": f"Bearer {theirs}"}}
        why = await refused(other, "decode-1", **options)
        assert why.startswith("router a refuses: the admin key")
        assert await held(one) == await held(other) == set()


def kinds(text: str) -> Iterable[str]:
    return [line for line in text.splitlines() if "notices_total" in line and DRAIN in line]


async def test_routers_that_were_told_nothing_say_nothing() -> None:
    async with named("a", decodes=3) as one:
        assert "routers" not in await drain(one, "decode-1", deadline_s=0)
        assert set(await drain(one, "decode-1", undo=True)) == {"worker", "held"}
        async with one.session.get(one.url + "/metrics") as response:
            assert not kinds(await response.text()), "there is nobody to tell"
    async with named("c") as one, named("d", beside=one) as other:
        await both(one, other)
        await all_said(begin(one, 2, 20), 20)
        for each in (one, other):
            async with each.session.get(each.url + "/metrics") as response:
                assert not kinds(await response.text())
