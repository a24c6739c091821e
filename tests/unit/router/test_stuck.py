"""Workers that hold work and make no step, and roles whose last worker is away: over stand-ins."""

import asyncio
import json
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import _whole, bodies, expected, idle, post, text_of
from tests.unit.router.test_moves import migrate

PATH = "/v1/completions"
BEATS = ["--heartbeat", "--token-ms", "20"]
TOKENS = 40


def cluster(stuck_s: float, **more: Any) -> Cluster:
    return Cluster(worker_args=BEATS, config={"stuck_s": stuck_s}, **more)


def body(number: int, tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    return bodies(tokens)[PATH] | {"prompt": f"hello {number}"} | more


async def stream(made: Cluster, number: int, **more: Any) -> tuple[int, bytes]:
    return await post(made, PATH, body(number, **more))


def row(state: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(w for w in state["workers"] if w["name"] == name)
    return found


def whole(answers: list[tuple[int, bytes]], first: int = 0) -> bool:
    return [(status, text_of(PATH, raw)) for status, raw in answers] == [
        (200, expected(f"hello {n}", TOKENS)) for n in range(first, first + len(answers))
    ]


def busy(name: str, least: int = 1) -> Any:
    return lambda state: row(state, name)["inflight"] >= least


def is_stuck(name: str, how: str) -> Any:
    return lambda state: (row(state, name)["stuck"] or {}).get("state") == how


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
async def test_what_a_stuck_worker_runs_goes_on_elsewhere_and_it_gets_nothing_until_it_goes_on(
    name: str,
) -> None:
    slow = {"prefill": ["--prefill-ms", "300"]}
    async with cluster(0.8, prefills=2, role_args=slow) as made:
        streams = [asyncio.create_task(stream(made, n)) for n in range(6)]
        await made.until(busy(name, 2))
        await made.make(name, "stand")
        state = await made.until(is_stuck(name, "stuck"))
        assert not row(state, name)["healthy"]
        assert row(state, name)["stuck"]["still_s"] >= 0.8
        assert whole(await asyncio.gather(*streams))
        state = await made.state()
        assert state["resumed"] + state["retried"] >= 2
        asked = (await made.stats(name))["posts"]
        assert whole(await asyncio.gather(*(stream(made, n) for n in range(6, 10))), 6)
        assert (await made.stats(name))["posts"] == asked
        async with made.session.get(f"{made.url}/metrics") as response:
            metrics = await response.text()
        assert f'toolkit_router_worker_stuck_total{{worker="{name}"}} 1.0' in metrics
        await made.make(name, "well")
        await made.until(lambda s: row(s, name)["healthy"] and not row(s, name)["stuck"])
        await made.until(idle)


@pytest.mark.slow
async def test_a_suspect_gets_nothing_new_and_keeps_what_it_has() -> None:
    async with cluster(6.0) as made:
        streams = [asyncio.create_task(stream(made, n)) for n in range(4)]
        await made.until(busy("decode-0", 2))
        await made.make("decode-0", "stand")
        state = await made.until(is_stuck("decode-0", "suspect"))
        assert row(state, "decode-0")["healthy"]
        had = row(state, "decode-0")["inflight"]
        streams.append(asyncio.create_task(stream(made, 4, rid="r")))
        await made.until(busy("decode-1"))
        (move,) = (await migrate(made, rid="r", to="decode-0"))["moves"]
        assert move["outcome"] == "kept"
        assert move["reason"] == "decode-0 makes no step while it holds work"
        new = await asyncio.gather(*(stream(made, n) for n in range(5, 9)))
        assert whole(new, 5)
        assert row(await made.state(), "decode-0")["inflight"] == had
        await made.make("decode-0", "well")
        assert whole(await asyncio.gather(*streams))
        state = await made.until(idle)
        assert (state["resumed"], state["retried"]) == (0, 0)


@pytest.mark.parametrize("after", [0, 3])
async def test_who_stops_one_scheduler_after_the_other_is_not_run_again(after: int) -> None:
    """In mid-answer, too; and those who ran beside it, again and again, are."""
    async with cluster(0.6, decodes=4) as made:
        others = [asyncio.create_task(stream(made, n)) for n in range(8)]
        await made.until(busy("decode-0", 2))
        status, raw = await stream(made, 99, stands_after=after)
        if after:  # it has begun to stream
            assert status == 200
            assert b"RequestFailsWorkers" in raw
        else:
            assert status == 422
        assert whole(await asyncio.gather(*others))
        state = await made.state()
        stood = [w["name"] for w in state["workers"] if w["stuck"]]
        assert len(stood) == (3 if after else 2)
        assert state["poison"] == dict.fromkeys(stood, 1)
        again, _ = await stream(made, 99, stands_after=after)
        assert again == 422, "it is refused at once"
        assert [w["name"] for w in (await made.state())["workers"] if w["stuck"]] == stood


async def test_who_came_when_the_rank_stood_already_is_not_suspected() -> None:
    """Suspects run one by one: a queue of them would wait for each other."""
    async with cluster(1.6, decodes=2) as made:
        await asyncio.sleep(0.3)  # it has been seen to go on
        await made.make("decode-0", "stand")
        late = [asyncio.create_task(stream(made, n, stream=False)) for n in range(8)]
        await made.until(busy("decode-0", 4))
        await made.until(is_stuck("decode-0", "stuck"))
        # A suspect would wait until the one before it has its answer.
        await made.until(lambda s: row(s, "decode-1")["inflight"] == 4, 10)
        for number, (status, raw) in enumerate(await asyncio.gather(*late)):
            assert status == 200
            assert _whole(json.loads(raw)) == expected(f"hello {number}", TOKENS)


async def tell(made: Cluster, **workers: Any) -> int:
    told = {
        name.replace("_", "-"): {"usual_s": usual, "back_in_s": back}
        for name, (usual, back) in workers.items()
    }
    status, _ = await post(made, "/admin/returns", {"workers": told}, admin=True)
    return status


async def test_requests_wait_for_the_only_prefill_worker_that_is_started_again() -> None:
    slow = {"prefill": ["--prefill-ms", "50"]}
    async with Cluster(role_args=slow, config={"no_worker_wait_s": 0.2}) as made:
        assert await tell(made, prefill_0=(3.0, 0.0)) == 200
        gate, done = asyncio.Semaphore(24), 0

        async def one(number: int) -> tuple[int, bytes]:
            nonlocal done
            async with gate:
                answer = await stream(made, number)
                done += 1
                return answer

        sending = [asyncio.create_task(one(n)) for n in range(100)]
        while done < 30:
            await asyncio.sleep(0.01)
        made.worker("prefill-0").kill()
        state = await made.until(lambda s: not row(s, "prefill-0")["healthy"])
        assert 0 < row(state, "prefill-0")["back_in_s"] <= 3.0
        assert await tell(made, prefill_0=(3.0, 4.0)) == 200
        await asyncio.sleep(1.0)  # far beyond no_worker_wait_s
        assert not [task for task in sending if task.done() and task.result()[0] != 200]
        await asyncio.to_thread(made.worker("prefill-0").start)
        assert whole(await asyncio.gather(*sending))


@pytest.mark.parametrize(
    ("usual_s", "back_in_s", "after"), [(2.0, 30.0, 30), (2.0, None, 2), (500.0, 500.0, 500)]
)
async def test_nobody_waits_for_a_worker_that_is_not_back_in_time(
    usual_s: float, back_in_s: float | None, after: int
) -> None:
    """It rests, it stays away, or it takes longer than the request has: 503 says when."""
    config = {"no_worker_wait_s": 0.2, "request_timeout_s": 60}
    async with Cluster(config=config) as made:
        made.worker("prefill-0").kill()
        await made.until(lambda s: not row(s, "prefill-0")["healthy"])
        await tell(made, prefill_0=(usual_s, back_in_s))
        async with made.session.post(f"{made.url}{PATH}", json=body(1)) as response:
            assert response.status == 503
            told = int(response.headers["Retry-After"])
        assert after - 5 <= told <= after


async def test_what_is_told_wrongly_is_refused_and_clients_tell_nothing() -> None:
    async with Cluster() as made:
        assert await tell(made, prefill_0=(-1.0, 0.0)) == 400
        status, _ = await post(made, "/admin/returns", {"workers": {}})
        assert status in (401, 403)
