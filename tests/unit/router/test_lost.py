"""Requests that a decode worker has taken and its rank has never got."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import _whole, bodies, expected, idle, post, run, text_of
from toolkit.contract.events import LoadReading
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.upstream import Call
from toolkit.router.worker import Rank
from toolkit.settings.router.config import RouterConfig

LOST_S = 5.0
NOTHING = {"running": 0, "waiting": 0, "used_tokens": 0, "total_tokens": 9, "waiting_tokens": 0}
PATH = "/v1/completions"


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_the_rank_does_not_have_runs_again(stream: bool) -> None:
    async def check() -> None:
        async with Cluster(decodes=1, config={"lost_s": 0.5}) as cluster:
            calls = [post(cluster, PATH, bodies(10)[PATH]) for _ in range(3)]
            calls.append(post(cluster, PATH, bodies(10, stream=stream, lost="told")[PATH]))
            *others, (status, raw) = await asyncio.gather(*calls)
            assert status == 200
            text = text_of(PATH, raw) if stream else _whole(json.loads(raw))
            assert text == expected("hello", 10)
            for status, raw in others:
                assert (status, text_of(PATH, raw)) == (200, expected("hello", 10))
            state = await cluster.until(idle)
            assert state["retried"] == 1
            assert "no request at all for 0.5 s" in cluster.log.read_text()

    run(check())


def test_a_rank_that_says_nothing_is_waited_for() -> None:
    async def check() -> None:
        async with Cluster(decodes=1, config={"lost_s": 0.2}) as cluster:
            call = asyncio.ensure_future(post(cluster, PATH, bodies(10, lost="stuck")[PATH]))
            await cluster.until(lambda s: s["workers"][1]["inflight"])
            await asyncio.sleep(1.5)
            assert not call.done()
            assert (await cluster.state())["retried"] == 0
            call.cancel()

    run(check())


class Clock:
    """A decode rank, and when it is read."""

    def __init__(self, role: str = "decode") -> None:
        self.now = 100.0
        workers = [
            {"name": each, "role": each, "url": "http://127.0.0.1:1", "bootstrap_port": 2}
            for each in (("plain",) if role == "plain" else ("prefill", "decode"))
        ]
        config = RouterConfig.model_validate({"workers": workers, "lost_s": LOST_S})
        self.rank: Rank = KnownWorkers(config).side(role)[0]

    def post(self) -> Call:
        call = Call("decode", b"", None)  # type: ignore[arg-type]
        self.rank.expect(call)
        return call

    def reading(self, after: float, **what: int) -> None:
        self.now += after
        self.rank.read(LoadReading(**NOTHING | what), self.now)


def test_only_readings_after_it_was_posted_count() -> None:
    async def check() -> None:
        clock = Clock()
        clock.reading(0)
        clock.reading(2 * LOST_S)
        call = clock.post()
        clock.reading(2 * LOST_S)  # the end of a long silence, in which it was not looked for
        clock.reading(LOST_S - 0.1)
        assert not call.done.done()
        clock.reading(0.2)
        assert call.failed
        await asyncio.sleep(0)
        assert not clock.rank._posted

    asyncio.run(check())


@pytest.mark.parametrize("has", [{"running": 1}, {"waiting": 1}, {"waiting": -1}])
def test_a_rank_that_had_something_since_may_have_had_this_one(
    has: dict[str, int],
) -> None:
    async def check() -> None:
        clock = Clock()
        call = clock.post()
        clock.reading(LOST_S - 1)
        clock.reading(0.5, **has)
        clock.reading(LOST_S - 1)
        clock.reading(LOST_S - 1)
        assert not call.done.done()
        clock.reading(2)
        assert call.failed

    asyncio.run(check())


def test_what_has_begun_to_answer_was_there() -> None:
    async def check() -> None:
        clock = Clock()
        call = clock.post()
        call.begun = True  # its client reads slowly, say
        clock.reading(0.1)
        clock.reading(2 * LOST_S)
        assert not call.done.done()

    asyncio.run(check())


def test_a_worker_that_was_down_is_asked_anew() -> None:
    async def check() -> None:
        clock = Clock()
        call = clock.post()
        clock.reading(0.1)
        clock.rank.worker.mark_up()
        clock.rank.worker.mark_down()
        clock.reading(LOST_S)
        assert not call.done.done()

    asyncio.run(check())


def test_a_worker_that_prefills_too_is_not_judged() -> None:
    """It does not count a prompt whose chunks it computes."""

    async def check() -> None:
        clock = Clock(role="plain")
        call = clock.post()
        clock.reading(0.1)
        clock.reading(2 * LOST_S)
        assert not call.done.done()

    asyncio.run(check())
