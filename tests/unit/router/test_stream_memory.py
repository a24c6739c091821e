"""What is kept of streams is charged to the budget as it grows, and given back however they end."""

import asyncio
import gc
import json
import tracemalloc

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, text_of
from toolkit.router.budget import MIB, Budget
from toolkit.router.relay import Relay
from toolkit.router.splitting import parse
from toolkit.router.stream_memory import GRAIN
from toolkit.router.upstream import Call

PATH = "/v1/completions"


class Nowhere:
    def write(self, events: bytes) -> None:
        pass

    def join(self, relay: Relay) -> None:
        pass


def event(number: int) -> bytes:
    # Text that does not pack well, as log-probabilities do not.
    text = f"{(number * 2654435761) % 2**32:x}{(number * 40503 * 65537) % 2**40:x}"
    return b': %d\ndata: {"choices":[{"index":0,"text":"%b"}]}\n\n' % (number, text.encode())


def relay_of(path: str, budget: Budget) -> tuple[Relay, Budget]:
    sub_request = parse(path, json.dumps({"prompt": "a", "text": "a", "stream": True}).encode())
    return Relay(sub_request.sub_requests[0], Nowhere(), charge=budget.open()), budget


@pytest.mark.slow
@pytest.mark.parametrize("path", [PATH, "/generate"])
async def test_the_charge_is_what_is_kept(path: str) -> None:
    """Beside the memory that the process really holds for it."""
    budget = Budget(64 * MIB)
    relay, _ = relay_of(path, budget)
    relay.begin(Call("w", (b"",), None), hold=False)
    relay.feed(event(0))
    gc.collect()
    tracemalloc.start()
    try:
        charges = []
        for number in range(1, 18_001):
            relay.feed(event(number))
            if number % 6_000 == 0:
                gc.collect()
                held = tracemalloc.get_traced_memory()[0]
                charges.append((budget.held, held))
    finally:
        tracemalloc.stop()
    if path == PATH:
        assert charges[0][0] < charges[1][0] < charges[2][0]
    for charged, held in charges:
        assert 0.7 * held - 2 * GRAIN < charged < 1.4 * held + 32 * GRAIN, charges


async def test_an_event_that_does_not_end_and_a_held_stream_are_charged_too() -> None:
    budget = Budget(64 * MIB)
    relay, _ = relay_of(PATH, budget)
    call = Call("w", (b"",), None)
    relay.begin(call, hold=False)
    relay.feed(b"data: ")
    for _ in range(20):
        relay.feed(b"x" * MIB)
    assert 20 * MIB <= budget.held <= 21 * MIB
    for _ in range(60):  # more than there is: its worker is left
        relay.feed(b"x" * MIB)
    assert call.failed
    held = Budget(8 * MIB)
    relay, _ = relay_of(PATH, held)
    call = Call("w", (b"",), None)
    relay.begin(call, hold=True)
    for _ in range(4):
        relay.feed(b"data: " + b"x" * MIB + b"\n\n")
    assert held.held >= 4 * MIB
    assert not call.failed
    for _ in range(4):
        relay.feed(b"data: " + b"x" * MIB + b"\n\n")
    assert call.failed


def test_nothing_counts_of_a_request_that_is_over() -> None:
    budget = Budget(MIB)
    with budget.open() as charge:
        charge.grow(1000)
        assert charge.hold(5000)
        assert budget.held == 6000
    assert charge.hold(10**9)
    assert budget.held == 0


async def test_where_there_is_no_room_a_stream_goes_on_and_is_let_go() -> None:
    budget = Budget(2 * MIB)
    relay, _ = relay_of(PATH, budget)
    relay.begin(Call("w", (b"",), None), hold=False)
    budget.held += 2 * MIB - 50_000  # other requests
    told: list[int] = []
    relay._count = told.append
    for number in range(5000):
        relay.feed(event(number))
    assert relay.forgotten
    assert relay.tokens == sum(told) == 5000
    assert budget.held <= 2 * MIB
    assert relay.ids == b"" and relay.sent.kept == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", ["whole", "gone", "aborted", "dead"])
async def test_a_router_gives_all_of_it_back(end: str) -> None:
    config = {"max_retries": 0, "record": None}
    async with Cluster(decodes=1, worker_args=["--token-ms", "1"], config=config) as cluster:
        body = bodies(2500)["/generate"] | {"rid": "mine"}
        seen: list[int] = []

        async def watch() -> None:
            while len(seen) < 3 or seen[-1] < seen[0] + 8_000:
                await asyncio.sleep(0.05)
                seen.append((await cluster.state())["held_bytes"])

        if end == "gone":
            async with (
                aiohttp.ClientSession() as http,
                http.post(cluster.url + "/generate", json=body) as answer,
            ):
                reading = asyncio.create_task(answer.content.read())
                await watch()
                answer.close()
                reading.cancel()
        else:
            running = asyncio.create_task(post(cluster, "/generate", body))
            await watch()
            if end == "aborted":
                await post(cluster, "/abort_request", {"rid": "mine"})
            if end == "dead":
                cluster.worker("decode-0").kill()
            await running
        await cluster.until(idle)
        assert (await cluster.state())["held_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("room", [True, False])
async def test_a_stream_that_was_let_go_says_so_when_its_worker_dies(room: bool) -> None:
    """With room for what its client has, it goes on elsewhere."""
    config = {"max_body_mib": 1, "max_body_total_mib": 256 if room else 3}
    args = ["--token-ms", "2", "--resume"]
    async with Cluster(worker_args=args, config=config) as cluster:
        # Prompts that run take nearly all of three MiB.
        body = {"prompt": "y" * 1_000_000, "max_tokens": 3000, "stream": True}
        others = [asyncio.create_task(post(cluster, PATH, body)) for _ in range(3)]
        await cluster.until(lambda state: state["running"] == 3)
        running = asyncio.create_task(post(cluster, PATH, bodies(3000)[PATH]))
        await cluster.until(lambda state: state["running"] == 4)
        await asyncio.sleep(1.0)
        for number in (0, 1):
            cluster.worker(f"decode-{number}").kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cluster.worker(f"decode-{number}").start)
            await cluster.until(lambda state: all(w["healthy"] for w in state["workers"]))
        answers = [raw for _, raw in await asyncio.gather(*others, running)]
        assert (await cluster.state())["held_bytes"] == 0
        told = [b"no memory left to keep what its client has" in raw for raw in answers]
        assert any(told) is not room
        whole = [raw for raw, lost in zip(answers, told, strict=True) if not lost]
        assert all(text_of(PATH, raw) for raw in whole)
        if room:
            assert text_of(PATH, answers[-1]) == expected("hello", 3000)
