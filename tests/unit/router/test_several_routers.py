"""Several routers over the same stand-in workers: what they share, and when one of them dies."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, post, run, text_of

PARKED = 4
CONFIG = {"parked_per_prefill": PARKED, "decode_policy": "pooled@shortest_queue"}
SLOW = ["--prefill-ms", "60", "--tokens", "4"]


def shared(state: dict[str, Any]) -> list[int]:
    """How many routers each worker says to have."""
    return [row.get("routers", 1) for row in state["workers"]]


async def asked(cluster: Cluster, count: int, at_once: int) -> None:
    """All are answered in full."""
    gate, body = asyncio.Semaphore(at_once), bodies(4)["/v1/completions"]

    async def one() -> None:
        async with gate:
            status, raw = await post(cluster, "/v1/completions", body)
        assert status == 200 and text_of("/v1/completions", raw) == expected("hello", 4)

    await asyncio.gather(*(one() for _ in range(count)))


async def most_parked(cluster: Cluster, work: Any) -> int:
    """Prefills that the prefill worker had at a time at most while that went on."""
    going, most = asyncio.ensure_future(work), 0
    while not going.done():
        most = max(most, (await cluster.stats("prefill-0"))["running"])
        await asyncio.sleep(0.002)
    await going
    return most


def test_routers_share_what_a_prefill_worker_may_hold_until_one_is_killed() -> None:
    async def main() -> None:
        one = Cluster(config=CONFIG, worker_args=SLOW)
        async with one:
            alone = await most_parked(one, asked(one, 24, 12))
            assert alone == PARKED
            async with Cluster(config=CONFIG, beside=one) as other:
                for each in (one, other):
                    await each.until(lambda state: set(shared(state)) == {2})
                both = asyncio.gather(asked(one, 24, 12), asked(other, 24, 12))
                assert await most_parked(one, both) <= PARKED
                less = await most_parked(one, asked(one, 16, 12))
                assert less == PARKED // 2, "the other one may have half of them at any time"
                assert other.router is not None
                other.router.send_signal(signal.SIGKILL)
                other.router.wait()
                await one.until(lambda state: set(shared(state)) == {1})
                assert await most_parked(one, asked(one, 24, 12)) == PARKED

    run(main())


def test_a_router_counts_once_however_often_its_decider_dies() -> None:
    async def main() -> None:
        import psutil

        async with (
            Cluster(config={**CONFIG, "relays": 2}, worker_args=SLOW) as one,
            Cluster(config=CONFIG, beside=one) as other,
        ):
            await other.until(lambda state: set(shared(state)) == {2})
            assert one.router is not None
            for _ in range(2):
                children = psutil.Process(one.router.pid).children()
                decider = next(c for c in children if c.name() == "tk-decider")
                decider.kill()
                await one.until(
                    lambda state: (
                        all(w["healthy"] for w in state["workers"]) and set(shared(state)) == {2}
                    )
                )
            assert set(shared(await other.state())) == {2}
            await asked(one, 8, 8)

    run(main())


@pytest.mark.parametrize("killed", [False, True])
def test_requests_of_a_router_that_ends_are_not_left_on_workers(killed: bool) -> None:
    """Those of the other one go on."""

    async def main() -> None:
        args = ["--tokens", "400", "--token-ms", "5"]
        async with Cluster(config=CONFIG, worker_args=args) as one:
            other = Cluster(config=CONFIG, beside=one)
            await other.__aenter__()
            body = bodies(200)["/v1/completions"]
            mine = [asyncio.create_task(post(one, "/v1/completions", body)) for _ in range(6)]
            theirs = [asyncio.create_task(post(other, "/v1/completions", body)) for _ in range(6)]
            running = {"decode-0", "decode-1"}
            await one.until_stats(lambda stats: sum(stats[d]["running"] for d in running) == 12)
            assert other.router is not None
            if killed:
                other.router.send_signal(signal.SIGKILL)
                other.router.wait()
                lost = await asyncio.gather(*theirs, return_exceptions=True)
                assert all(isinstance(each, Exception) for each in lost)
                await one.until_stats(lambda stats: sum(stats[d]["running"] for d in running) <= 6)
            for status, raw in await asyncio.gather(*mine):
                assert status == 200
                assert text_of("/v1/completions", raw) == expected("hello", 200)
            if not killed:
                assert all(status == 200 for status, _ in await asyncio.gather(*theirs))
            await other.__aexit__()
            await one.until_stats(lambda stats: all(s["running"] == 0 for s in stats.values()))

    run(main())
