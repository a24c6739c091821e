"""A router over stand-in workers: one of them is emptied, and gets requests again."""

import asyncio
import json
from collections import Counter, defaultdict
from typing import Any, ClassVar, cast

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of
from toolkit.router.emptying import LOOK_S, Emptyings
from toolkit.router.known_workers import KnownWorkers
from toolkit.settings.router.config import RouterConfig

CHAT = "/v1/chat/completions"
ARGS = ["--resume", "--token-ms", "4"]


async def drain(router: Cluster, name: str, **body: Any) -> dict[str, Any]:
    status, raw = await post(router, "/admin/drain", {"worker": name, **body}, admin=True)
    assert status == 200, raw
    result: dict[str, Any] = json.loads(raw)
    return result


def begin(router: Cluster, count: int, tokens: int = 300, **extra: Any) -> list[Any]:
    body = {**bodies(tokens)[CHAT], **extra}
    return [asyncio.ensure_future(post(router, CHAT, body)) for _ in range(count)]


def row(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in state["workers"] if row["name"] == name)


async def all_said(tasks: list[Any], tokens: int = 300) -> None:
    for status, raw in await asyncio.gather(*tasks):
        assert status == 200
        assert text_of(CHAT, raw) == expected(prompt_of(CHAT), tokens)


@pytest.mark.parametrize("policy", ["shortest_queue", "br0"])
async def test_a_drained_worker_is_empty_and_gets_nothing_until_it_is_let_go(policy: str) -> None:
    config = {"decode_policy": policy}
    async with Cluster(decodes=3, worker_args=ARGS, config=config) as router:
        tasks = begin(router, 9, 600)
        await router.until(lambda s: row(s, "decode-1")["inflight"] == 3)
        told = await drain(router, "decode-1")
        assert (told["drained"], told["left"], told["lost"]) == (True, 0, 0)
        assert told["moved"] == 3
        state = await router.state()
        assert row(state, "decode-1")["held"] and row(state, "decode-1")["healthy"]
        served = (await router.stats("decode-1"))["posts"]
        tasks += begin(router, 6, 600)
        await all_said(tasks, 600)
        assert (await router.stats("decode-1"))["posts"] == served
        state = await router.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)
        async with router.session.get(router.url + "/metrics") as response:
            text = await response.text()
        assert 'toolkit_router_worker_held{dp_rank="0",worker="decode-1"} 1.0' in text
        assert (await drain(router, "decode-1", undo=True)) == {"worker": "decode-1", "held": False}
        await all_said(begin(router, 6, 20), 20)
        assert (await router.stats("decode-1"))["posts"] > served


async def test_what_cannot_move_is_waited_for_until_the_deadline() -> None:
    async with Cluster(worker_args=ARGS) as router:
        (task,) = begin(router, 1, 400, logprobs=True)
        state = await router.until(lambda s: sum(r["inflight"] for r in s["workers"][1:]) == 1)
        name = next(r["name"] for r in state["workers"][1:] if r["inflight"])
        await asyncio.sleep(0.2)
        told = await drain(router, name, deadline_s=0.2)
        assert (told["drained"], told["left"], told["moved"]) == (False, 1, 0)
        assert "logprobs" in next(iter(told["stays"]))
        told = await drain(router, name)
        assert (told["drained"], told["left"]) == (True, 0)
        assert (await task)[0] == 200


async def test_a_prefill_worker_is_drained_by_waiting() -> None:
    args = {"prefill": ["--prefill-ms", "100"]}
    async with Cluster(prefills=2, worker_args=ARGS, role_args=args) as router:
        tasks = begin(router, 6, 20)
        await router.until(lambda s: row(s, "prefill-0")["inflight"] > 0)
        told = await drain(router, "prefill-0")
        assert (told["drained"], told["moved"]) == (True, 0)
        served = (await router.stats("prefill-0"))["posts"]
        await all_said(tasks + begin(router, 4, 20), 20)
        assert (await router.stats("prefill-0"))["posts"] == served


async def test_drains_of_two_workers_at_a_time_lose_nothing() -> None:
    async with Cluster(decodes=3, worker_args=ARGS) as router:
        tasks = begin(router, 12)
        await router.until(lambda s: sum(r["inflight"] for r in s["workers"][1:]) == 12)
        told = await asyncio.gather(drain(router, "decode-0"), drain(router, "decode-2"))
        assert [each["drained"] for each in told] == [True, True]
        await all_said(tasks)


def test_a_worker_or_one_of_its_ranks_is_named() -> None:
    prefill = {"name": "p", "role": "prefill", "url": "http://h:1", "bootstrap_port": 1}
    decode = {"name": "d", "role": "decode", "url": "http://h:2", "dp_size": 2}
    known = KnownWorkers(RouterConfig.model_validate({"workers": [prefill, decode]}))

    def names(name: str) -> list[str]:
        return [rank.name for rank in known.ranks_named(name)]

    assert (names("d"), names("d:1"), names("p")) == (["d:0", "d:1"], ["d:1"], ["p"])
    assert names("p:0") == ["p"]
    for wrong in ("", "d:2", "d:-1", "d:x", "x", "x:0", ":0"):
        assert names(wrong) == []
    known.hold(known.ranks_named("d:1"))
    assert [rank.held for rank in known.side("decode")] == [False, True]


async def test_a_move_that_ends_after_its_request_has_left_is_counted() -> None:
    class Rank:
        inflight = 1

    class Moves:
        emptied: ClassVar[defaultdict[Any, Counter[str]]] = defaultdict(Counter)
        under_way = 0

        def leaving(self, rank: Any) -> int:
            return self.under_way

        def stays(self, rank: Any) -> Counter[str]:
            return Counter()

    class Known:
        emptied: ClassVar[list[bool]] = []

        def empty(self, ranks: Any, on: bool = True) -> None:
            self.emptied.append(on)

    rank: Any = Rank()
    moves = Moves()

    async def move() -> None:
        moves.under_way += 1
        await asyncio.sleep(0.01)
        rank.inflight = 0
        await asyncio.sleep(3 * LOOK_S)
        moves.emptied[rank]["moved"] += 1
        moves.under_way -= 1

    moving = asyncio.ensure_future(move())
    await asyncio.sleep(0)
    emptyings = Emptyings(cast(Any, Known()), cast(Any, moves))
    emptyings.begin([rank], 5.0)
    assert not emptyings.counts([rank]).over
    await emptyings.over([rank], 5.0)
    await moving
    told = emptyings.counts([rank])
    assert (told.over, told.moved, told.left) == (True, 1, 0)
    assert Known.emptied == [True, False]
