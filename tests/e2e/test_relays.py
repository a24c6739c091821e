"""A router of several processes over real workers: they are killed under load, and no stream is
lost but those of a relay's own clients."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import psutil
import pytest

from tests.e2e import calls
from tests.e2e.commands import ordered
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.workers import settled, state, victim
from tests.present import present
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("relays")]

DECIDER = "tk-decider"
RELAYS = 2
TOKENS, LONG = 24, 200
REQUESTS, CONCURRENCY = 60, 8


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-demo.yaml, its router with two relays."""
    source = shipped("cpu-demo", router={"relays": RELAYS})
    with deployed(source, tmp_path_factory.mktemp("relayed")) as up:
        yield up


async def process(up: Running, name: str) -> psutil.Process:
    """Of the router, by what the system calls it, once it is there: another one may be about to be
    started in its place."""
    found: list[psutil.Process] = []

    async def there() -> bool:
        for child in psutil.Process(present(up.router_pid)).children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == name and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return bool(found)

    await calls.until(there, f"{name} is there")
    return found[0]


def prompts(name: str, count: int) -> list[list[int]]:
    return [calls.prompt(f"relays-{name}-{n}", 10 + n % 60) for n in range(count)]


def right(answers: list[calls.Answer], asked: list[list[int]], reference: Reference) -> None:
    assert [answer.error for answer in answers] == [""] * len(asked)
    expected = reference.greedy_each(asked, TOKENS, [answer.ids for answer in answers])
    assert [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("policy", ["shortest_queue", "eldr", "br0"])
def test_a_decider_that_is_killed_costs_nothing(
    relayed: Running, reference: Reference, policy: str
) -> None:
    """Under each way in which a decode worker is chosen: at once, by experts, from the pool."""
    asked = prompts(policy, REQUESTS)
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 > 0) for n, ids in enumerate(asked)]

    async def scenario() -> list[calls.Answer]:
        await calls.switch(relayed.router_url, decode=policy)
        sending = asyncio.create_task(calls.all_of(relayed.router_url, bodies, CONCURRENCY))
        for _ in range(3):
            await asyncio.sleep(0.5)
            (await process(relayed, DECIDER)).kill()
        return await sending

    answers = calls.run(scenario())
    right(answers, asked, reference)
    calls.run(settled(relayed))
    after = calls.run(state(relayed.router_url))
    assert after["policies"]["decode"] == policy
    assert after["parked"] == after["running"] == 0


def test_a_relay_that_is_killed_costs_its_own_clients_alone(
    relayed: Running, reference: Reference
) -> None:
    asked = prompts("relay", 12)
    dying: set[int] = set()
    begun: set[int] = set()

    async def one(ids: list[int]) -> tuple[int, calls.Answer]:
        """On a connection of its own; and from which port."""
        async with calls.session() as http:
            seen: list[int] = []

            async def note(
                request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
            ) -> aiohttp.ClientResponse:
                response = await handler(request)
                transport = present(present(response.connection).transport)
                seen.append(transport.get_extra_info("sockname")[1])
                begun.add(seen[0])
                return response

            http._middlewares = (*http._middlewares, note)
            body = calls.greedy(ids, LONG, stream=True)
            answer = await calls.generate(http, relayed.router_url, body)
            return seen[0] if seen else 0, answer

    async def scenario() -> list[tuple[int, calls.Answer]]:
        running = [asyncio.create_task(one(ids)) for ids in asked]

        async def all_run() -> bool:
            return len(begun) == len(asked)

        await calls.until(all_run, "all of them have begun")
        relay = await process(relayed, "tk-relay-1")
        dying.update(each.raddr.port for each in relay.net_connections("tcp") if each.raddr)
        relay.kill()
        return await asyncio.gather(*running)

    ended = calls.run(scenario())
    lost = {port for port, answer in ended if answer.error}
    assert lost <= dying, "nobody else's"
    rest = [(ids, answer) for ids, (_, answer) in zip(asked, ended, strict=True)
            if not answer.error]  # fmt: skip
    assert 0 < len(rest) < len(asked)
    expected = reference.greedy_each([ids for ids, _ in rest], LONG, [a.ids for _, a in rest])
    assert [answer.ids for _, answer in rest] == expected

    async def empty() -> bool:
        """What the lost ones held on workers is free again."""
        rows = (await state(relayed.router_url))["workers"]
        decodes = [row["load"] for row in rows if row["role"] == "decode"]
        return all(load is not None and not load["used_tokens"] for load in decodes)

    calls.run(calls.until(empty, "no KV is left"))
    again = prompts("again", 8)
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in again]
    right(calls.run(calls.all_of(relayed.router_url, bodies, 4)), again, reference)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_killed_worker_and_a_killed_decider_together(
    relayed: Running, reference: Reference, name: str
) -> None:
    asked = prompts(f"both-{name}", REQUESTS)
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in asked]

    async def scenario() -> list[calls.Answer]:
        sending = asyncio.create_task(calls.all_of(relayed.router_url, bodies, CONCURRENCY))
        await asyncio.sleep(0.8)
        os.kill(victim(relayed, name, "scheduler"), signal.SIGKILL)
        (await process(relayed, DECIDER)).kill()
        return await sending

    right(calls.run(scenario()), asked, reference)
    calls.run(settled(relayed))


def test_streams_move_between_workers_while_the_decider_is_replaced(
    relayed: Running, reference: Reference
) -> None:
    asked = prompts("moves", 6)
    told: list[dict[str, Any]] = []

    async def scenario() -> list[calls.Answer]:
        async with calls.session() as http:
            running = []
            for n, ids in enumerate(asked):
                body = calls.greedy(ids, LONG, stream=True) | {"rid": f"moving-{n}"}
                running.append(asyncio.create_task(calls.generate(http, relayed.router_url, body)))
            turn = 0
            while not all(each.done() for each in running):
                turn += 1
                order = {"rid": f"moving-{turn % len(asked)}", "to": None}
                try:
                    where = relayed.admin_url + "/admin/migrate"
                    async with http.post(where, json=order) as answer:
                        if answer.status == 200:
                            told.extend((await answer.json())["moves"])
                except aiohttp.ClientError:
                    pass  # whom it asked has just been killed
                if turn % 25 == 0:
                    (await process(relayed, DECIDER)).kill()
                await asyncio.sleep(0.05)
            return await asyncio.gather(*running)

    answers = calls.run(scenario())
    assert [answer.error for answer in answers] == [""] * len(asked)
    expected = reference.greedy_each(asked, LONG, [answer.ids for answer in answers])
    assert [answer.ids for answer in answers] == expected
    assert any(each["outcome"] == "moved" for each in told)
    calls.run(settled(relayed))


async def upgraded(
    relayed: Running, policy: str, long: list[list[int]]
) -> tuple[list[calls.Answer], list[calls.Answer]]:
    """What short requests say that come until it is over, and streams that begin before it."""
    url = relayed.router_url
    await calls.switch(url, decode=policy)
    over = asyncio.Event()

    async def send() -> list[calls.Answer]:
        answers: list[calls.Answer] = []
        last = False
        while not last:
            last = over.is_set() and len(answers) >= REQUESTS
            asked = prompts(f"upgrade-{policy}", len(answers) + 2 * CONCURRENCY)[len(answers) :]
            bodies = [calls.greedy(ids, TOKENS, stream=n % 4 > 0) for n, ids in enumerate(asked)]
            answers += await calls.all_of(url, bodies, CONCURRENCY)
        return answers

    lasting = [calls.greedy(ids, LONG, stream=True) for ids in long]
    sending = asyncio.create_task(send())
    streaming = asyncio.create_task(calls.all_of(url, lasting, len(lasting)))
    await asyncio.sleep(0.5)
    status, said = await asyncio.to_thread(ordered, relayed, "upgrade", "router")
    assert status == 0 and "no request was cut" in said, said
    over.set()
    return await sending, await streaming


def test_an_upgrade_under_load_costs_nothing(relayed: Running, reference: Reference) -> None:
    """Twice, with streams that begin before it; the second time decode workers are chosen from the
    pool. The launcher keeps its router."""
    restarts = relayed.supervisor.fleet.processes["router"].restarts
    for policy in ("eldr", "br0"):
        long = prompts(f"long-{policy}", 4)
        before, pid = calls.run(process(relayed, DECIDER)).pid, relayed.router_pid
        answers, lasting = calls.run(upgraded(relayed, policy, long))
        right(answers, prompts(f"upgrade-{policy}", len(answers)), reference)
        assert [answer.error for answer in lasting] == [""] * len(long)
        expected = reference.greedy_each(long, LONG, [answer.ids for answer in lasting])
        assert [answer.ids for answer in lasting] == expected
        calls.run(settled(relayed))
        after = calls.run(state(relayed.router_url))
        assert after["policies"]["decode"] == policy, "what was switched outlives it"
        assert after["parked"] == after["running"] == after["retried"] == after["resumed"] == 0
        assert relayed.router_pid == pid and calls.run(process(relayed, DECIDER)).pid != before
    assert relayed.supervisor.fleet.processes["router"].restarts == restarts
