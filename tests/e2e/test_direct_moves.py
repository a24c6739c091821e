"""Requests whose KV goes straight from one real decode worker to another, while somebody fails: the
target stands still, either of them is killed, the client goes away, the text ends."""

import asyncio
import os
import random
import signal
from collections import Counter
from functools import partial
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.reference import Reference
from tests.e2e.workers import settled, state, victim
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("moving")]

CONTEXT = 400
TOKENS = 150
LATE = 64
"""Tokens that a source generates while its target stands still, not for so long that it is ended
for that. No move once waited for so many."""


class Moved:
    """Streams on two decode workers, and orders to move them."""

    def __init__(self, deployment: Running, http: aiohttp.ClientSession) -> None:
        self.deployment, self.http = deployment, http
        self.url, self.admin = deployment.router_url, deployment.admin_url
        self.tokens: dict[str, int] = {}

    def start(self, name: str, tokens: int = TOKENS) -> asyncio.Task[calls.Answer]:
        body = calls.greedy(calls.prompt(name, CONTEXT), tokens, stream=True) | {"rid": name}
        count = lambda tokens: self.tokens.__setitem__(name, tokens)  # noqa: E731
        return asyncio.ensure_future(calls.generate(self.http, self.url, body, count))

    async def has(self, name: str, tokens: int) -> None:
        while self.tokens.get(name, 0) < tokens:
            await asyncio.sleep(0.005)

    async def move(self, name: str, to: str | None) -> dict[str, Any]:
        body = {"rid": name, "to": to}
        async with self.http.post(self.admin + "/admin/migrate", json=body) as response:
            found = (await response.json()).get("moves") or [{"outcome": "ended"}]
            return dict(found[0])

    async def place(self, name: str) -> tuple[str, str]:
        """Bring it to decode-0 before its first ten tokens more; where it is, and where not."""
        await self.has(name, 2)
        told = await self.move(name, "decode-0")
        assert told["outcome"] in ("moved", "kept"), told
        return "decode-0", "decode-1"


def right(answers: dict[str, calls.Answer], reference: Reference, tokens: int = TOKENS) -> None:
    for name, answer in answers.items():
        assert answer.error == "", (name, answer.error)
        assert answer.ids == reference.greedy(calls.prompt(name, CONTEXT), tokens, answer.ids), name


async def down(deployment: Running, name: str) -> bool:
    """Whether the router has given a decode worker up."""
    rows = (await state(deployment.router_url))["workers"]
    return not next(row["healthy"] for row in rows if row["name"] == name)


def empty(deployment: Running) -> None:
    """No request and no KV is left on any decode worker."""

    async def is_empty() -> bool:
        rows = (await state(deployment.router_url))["workers"]
        decodes = [row for row in rows if row["role"] == "decode"]
        return all(
            # One that has just come back has said no load yet.
            row["healthy"] and not row["inflight"] and row["load"] is not None
            and not row["load"]["used_tokens"]
            for row in decodes
        )  # fmt: skip

    calls.run(calls.until(is_empty, "nothing is left on decode workers"))


@pytest.mark.parametrize("given_up", [False, True], ids=["a moment", "given up"])
def test_a_target_that_stands_still_costs_nothing(
    deployment: Running, reference: Reference, given_up: bool
) -> None:
    """It never says where the KV is to go, so its places are used up, or the request ends: the
    source has gone on all the time."""

    async def main() -> None:
        async with calls.session() as http:
            streams = Moved(deployment, http)
            task = streams.start("still")
            _, target = await streams.place("still")
            pid = victim(deployment, target, "scheduler")
            os.kill(pid, signal.SIGSTOP)
            try:
                told = await streams.move("still", target)
                if given_up:
                    await calls.until(partial(down, deployment, target), "it is given up")
            finally:
                os.kill(pid, signal.SIGCONT)
            assert told["outcome"] in ("kept", "ended"), told
            right({"still": await task}, reference)

    calls.run(settled(deployment))
    calls.run(main())
    empty(deployment)


def test_a_target_that_answers_late_is_waited_for(
    deployment: Running, reference: Reference
) -> None:
    """Its client notices nothing: the source decodes on, and stops when all but a little is
    there."""
    tokens = 600

    async def main() -> None:
        async with calls.session() as http:
            streams = Moved(deployment, http)
            task = streams.start("late", tokens)
            _, target = await streams.place("late")
            pid = victim(deployment, target, "scheduler")
            os.kill(pid, signal.SIGSTOP)
            try:
                order = asyncio.ensure_future(streams.move("late", target))
                had = streams.tokens["late"]
                await streams.has("late", had + LATE)
                assert not order.done()
            finally:
                os.kill(pid, signal.SIGCONT)
            told = await order
            assert (told["outcome"], told["kind"]) == ("moved", "direct"), told
            right({"late": await task}, reference, tokens)

    calls.run(settled(deployment))
    calls.run(main())
    empty(deployment)


@pytest.mark.parametrize(("who", "process"), [("source", "scheduler"), ("target", "server")])
def test_whoever_is_killed_at_whatever_moment_no_stream_is_lost(
    deployment: Running, reference: Reference, who: str, process: str
) -> None:
    """Six streams on one worker are moved one after the other; it, or where they go, is killed in
    the middle of it."""
    names = [f"kill-{who}-{process}-{number}" for number in range(6)]
    outcomes: Counter[str] = Counter()

    async def main() -> dict[str, calls.Answer]:
        async with calls.session() as http:
            streams = Moved(deployment, http)
            tasks = {name: streams.start(name) for name in names}
            for name in names:
                source, target = await streams.place(name)
            killed = source if who == "source" else target
            pid = victim(deployment, killed, process)
            orders = [asyncio.ensure_future(streams.move(name, target)) for name in names]
            await asyncio.sleep(random.uniform(0.02, 0.4))
            os.kill(pid, signal.SIGKILL)
            for order in orders:
                outcomes[(await order)["outcome"]] += 1
            return {name: await task for name, task in tasks.items()}

    calls.run(settled(deployment))
    right(calls.run(main()), reference)
    print(who, process, dict(outcomes))
    assert not outcomes["lost"]
    calls.run(settled(deployment))
    empty(deployment)


def test_clients_that_go_away_and_texts_that_end_in_a_move_leave_nothing(
    deployment: Running, reference: Reference
) -> None:
    """Half of them go away, the others end somewhere around a cut."""
    rng = random.Random(5)
    lengths = {f"end-{number}": 30 + number for number in range(24)}

    async def one(streams: Moved, name: str, tokens: int) -> calls.Answer | None:
        task = streams.start(name, tokens)
        await streams.has(name, 4)
        order = asyncio.ensure_future(streams.move(name, None))
        if tokens % 2:
            await asyncio.sleep(rng.uniform(0, 0.3))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await order
            return None
        while not task.done():
            await order
            order = asyncio.ensure_future(streams.move(name, None))
        await order
        return await task

    async def main() -> None:
        async with calls.session() as http:
            streams = Moved(deployment, http)
            gate = asyncio.Semaphore(6)

            async def gated(name: str, tokens: int) -> calls.Answer | None:
                async with gate:
                    return await one(streams, name, tokens)

            got = await asyncio.gather(*(gated(name, n) for name, n in lengths.items()))
            for (name, tokens), answer in zip(lengths.items(), got, strict=True):
                if answer is not None:
                    right({name: answer}, reference, tokens)

    calls.run(settled(deployment))
    calls.run(main())
    empty(deployment)
    assert [worker.restarts for worker in deployment.workers if worker.status != "ready"] == []


async def test_ranks_of_one_server_send_to_one_another(
    cpu_dp: Running, reference: Reference
) -> None:
    """DP attention: all ranks take every step together, and each has the KV of its own requests."""
    names = [f"rank-{number}" for number in range(4)]
    outcomes: Counter[str] = Counter()
    async with calls.session() as http:
        streams = Moved(cpu_dp, http)
        tasks = {name: streams.start(name, 60) for name in names}
        for name in names:
            await streams.has(name, 3)
            for to in ("decode-0:0", "decode-0:1"):
                told = await streams.move(name, to)
                outcomes[f"{told['outcome']} {told.get('kind', '')}".strip()] += 1
        answers, outcomes = {name: await task for name, task in tasks.items()}, outcomes
    print(dict(outcomes))
    right(answers, reference, 60)
    assert outcomes["moved direct"] >= 2
