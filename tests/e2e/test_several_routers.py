"""Two routers over the same real workers: both decide, each for its own requests, tell each other
what only one of them knows, and one of them is killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e import calls, worker_key
from tests.e2e.deployments import deployed, shipped
from tests.e2e.reference import Reference
from tests.e2e.workers import metrics, settled, state
from tests.ports import free_port
from toolkit.contract.variables import ROUTER_NAME_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS, LONG, PARKED = 24, 200, 4


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """launch/cpu-demo.yaml with the router that it has."""
    source = shipped("cpu-demo", router={"parked_per_prefill": PARKED})
    with deployed(source, tmp_path_factory.mktemp("routers")) as up:
        yield up


@contextmanager
def another(
    up: Running, folder: Path, name: str = "", urls: dict[str, str] | None = None, **changes: Any
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A second router with the configuration of the first, on ports of its own. `name`: what it
    calls itself; `urls`: where it finds some of the workers."""
    config = json.loads((up.run_dir / "router.json").read_text())
    config |= {"port": free_port(), "admin_port": free_port(), **changes}
    for worker in config["workers"]:
        worker["url"] = (urls or {}).get(worker["name"], worker["url"])
    file = folder / f"router-{config['port']}.json"
    file.write_text(json.dumps(config))
    environment = {**os.environ, WORKER_KEY_VARIABLE: worker_key.of(up)}
    environment |= {ROUTER_NAME_VARIABLE: name} if name else {}
    with (folder / f"router-{config['port']}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.router", str(file)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    url = f"http://127.0.0.1:{config['port']}"
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "it does not serve"
            try:
                with urllib.request.urlopen(f"{url}/readiness", timeout=5):
                    break
            except OSError:
                time.sleep(0.05)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


async def routers_are(url: str, count: int) -> None:
    """That router has heard of so many on every worker."""

    async def heard() -> bool:
        rows = (await state(url))["workers"]
        return {row.get("routers", 1) for row in rows} == {count}

    await calls.until(heard, f"all workers say that they have {count} routers")


def right(
    answers: list[calls.Answer], asked: list[list[int]], tokens: int, reference: Reference
) -> None:
    assert [answer.error for answer in answers] == [""] * len(asked)
    expected = reference.greedy_each(asked, tokens, [answer.ids for answer in answers])
    assert [answer.ids for answer in answers] == expected


async def empty(up: Running) -> None:
    """Until nothing is left on the workers."""

    async def none() -> bool:
        rows = (await state(up.router_url))["workers"]
        held = [row["load"] for row in rows]
        return all(load is not None and not load["used_tokens"] for load in held if load) and all(
            row["load"]["running"] == row["load"]["waiting"] == 0 for row in rows if row["load"]
        )

    await calls.until(none, "nothing is left on the workers")


@pytest.mark.parametrize("policy", ["eldr", "br0"])
def test_two_routers_serve_what_came_to_each_and_know_of_each_other(
    workers: Running, reference: Reference, tmp_path: Path, policy: str
) -> None:
    asked = [calls.prompt(f"two-{policy}-{n}", 10 + n % 60) for n in range(48)]
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 > 0) for n, ids in enumerate(asked)]

    async def scenario(urls: list[str]) -> list[calls.Answer]:
        for url in urls:
            await routers_are(url, len(urls))
            await calls.switch(url, decode=policy)
        half = [calls.all_of(url, bodies[n::2], 6) for n, url in enumerate(urls)]
        both = await asyncio.gather(*half)
        return [answer for pair in zip(*both, strict=True) for answer in pair]

    with another(workers, tmp_path) as (other, _):
        answers = calls.run(scenario([workers.router_url, other]))
        right(answers, asked, TOKENS, reference)
        completed = [
            sum(row["completed"] for row in calls.run(state(url))["workers"])
            for url in (workers.router_url, other)
        ]
        assert min(completed) >= 24, "each has served its half"
        calls.run(settled(workers))
    calls.run(routers_are(workers.router_url, 1))


def test_a_router_that_is_killed_leaves_no_kv_and_costs_the_other_one_nothing(
    workers: Running, reference: Reference, tmp_path: Path
) -> None:
    mine = [calls.prompt(f"mine-{n}", 20 + n) for n in range(8)]
    theirs = [calls.prompt(f"theirs-{n}", 400 + n) for n in range(12)]
    long = [calls.greedy(ids, LONG, stream=True) for ids in mine]

    async def scenario(
        other: str, process: subprocess.Popen[bytes]
    ) -> tuple[list[calls.Answer], list[calls.Answer]]:
        await routers_are(workers.router_url, 2)
        bodies = [calls.greedy(ids, LONG, stream=True) for ids in theirs]
        dying = asyncio.create_task(calls.all_of(other, bodies, len(bodies)))
        going = asyncio.create_task(calls.all_of(workers.router_url, long, len(long)))

        async def under_way() -> bool:
            return bool((await state(other))["running"] >= len(bodies))

        await calls.until(under_way, "its requests run")
        await asyncio.sleep(0.5)  # some wait for their prefill, some are handed over, some decode
        process.kill()
        return await going, await dying

    with another(workers, tmp_path) as (other, process):
        kept, lost = calls.run(scenario(other, process))
    right(kept, mine, LONG, reference)
    assert any(answer.error for answer in lost)

    calls.run(empty(workers))
    calls.run(routers_are(workers.router_url, 1))
    again = [calls.prompt(f"afterwards-{n}", 30) for n in range(2 * PARKED)]
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in again]
    right(
        calls.run(calls.all_of(workers.router_url, bodies, len(bodies))), again, TOKENS, reference
    )


async def sent(method: str, url: str, **body: Any) -> tuple[int, Any]:
    async with calls.session() as http, http.request(method, url, json=body or None) as answer:
        return answer.status, await answer.json()


async def admin_of(url: str) -> str:
    return str((await state(url))["admin"])


async def seen(url: str, rid: str) -> tuple[str, str]:
    """The state of a request at a router, and which one says so; empty where it is unknown."""
    status, found = await sent("GET", f"{await admin_of(url)}/requests/{rid}")
    if status == 404:
        return "", ""
    [row] = found["requests"]
    return row["state"], row["router"]


@pytest.mark.parametrize("relays", [1, 2])
def test_any_router_finds_and_aborts_a_request_in_whatever_state(
    workers: Running, reference: Reference, tmp_path: Path, relays: int
) -> None:
    kept = [calls.prompt(f"kept-{relays}-{n}", 60 + n) for n in range(3)]

    async def scenario(other: str) -> list[calls.Answer]:
        mine = workers.router_url
        rid = f"streams-{relays}"
        await routers_are(mine, 2)
        await routers_are(other, 2)
        bodies = [calls.greedy(ids, LONG, stream=True) for ids in kept]
        going = asyncio.create_task(calls.all_of(mine, bodies, len(bodies)))
        streams = asyncio.Event()

        def came(_: int, tokens: int) -> None:
            if tokens >= 4:
                streams.set()

        # One that streams.
        body = calls.greedy(calls.prompt("streams", 50), 2 * LONG, stream=True)
        task = asyncio.create_task(calls.all_of(mine, [body | {"rid": rid}], 1, came))
        await streams.wait()
        state_there, owner = await seen(other, rid)
        assert (state_there, await seen(mine, rid)) == ("running", ("running", owner))
        assert await sent("POST", f"{other}/abort_request", rid=rid) == (200, {"aborted": 1})
        [answer] = await task
        assert "abort" in answer.error.lower() and len(answer.ids) < 2 * LONG
        assert (await seen(other, rid))[0] == "aborted"
        assert (await seen(mine, rid))[0] == "aborted", "and not tried again"
        # Some that wait for a prefill: more than this router may have parked.
        rids = [f"w{relays}-{n}" for n in range(24)]
        many = [
            calls.greedy(calls.prompt(f"waits-{n}", 400), LONG, stream=False) | {"rid": each}
            for n, each in enumerate(rids)
        ]
        waiting = asyncio.create_task(calls.all_of(mine, many, len(many)))
        queued: list[str] = []
        while not queued:
            queued = [each for each in rids if (await seen(other, each))[0] == "queued"]
        assert await sent("POST", f"{other}/abort_request", rid=queued[-1]) == (200, {"aborted": 1})
        assert (await seen(mine, queued[-1]))[0] == "aborted"
        assert await sent("POST", f"{other}/abort_request", rid="nobody") == (200, {"aborted": 0})
        assert await seen(other, "nobody") == ("", "")
        for each in rids:
            await sent("POST", f"{other}/abort_request", rid=each)
        answers = await waiting
        assert sum(bool(answer.error) for answer in answers) >= len(many) // 2
        assert all("abort" in a.error.lower() for a in answers if a.error)
        return await going

    with another(workers, tmp_path, relays=relays) as (other, _):
        answers = calls.run(scenario(other))
        right(answers, kept, LONG, reference)
        calls.run(empty(workers))
        calls.run(settled(workers))
    calls.run(routers_are(workers.router_url, 1))


class SickWay:
    """A TCP proxy before a worker. While it is `sick`, what generates is cut off."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self.sick = False
        self.cut = 0

    async def begin(self) -> int:
        """Its port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*self._to)
        await asyncio.gather(
            self._pass(reader, there[1], writer, True), self._pass(there[0], writer, writer, False)
        )

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        asks: bool,
    ) -> None:
        try:
            while data := await reader.read(2**16):
                if asks and self.sick and data.startswith(b"POST /generate"):
                    self.cut += 1
                    client.transport.abort()
                    return
                to.write(data)
                await to.drain()
        except OSError:
            pass
        finally:
            to.close()


def test_a_worker_that_fails_one_router_is_probed_by_the_others_and_stays_where_it_is_well(
    workers: Running, reference: Reference, tmp_path: Path
) -> None:
    """The first router reaches the worker; the two others by a way that is broken."""
    asked = [calls.prompt(f"sick-{n}", 20 + n) for n in range(8)]
    bodies = [calls.greedy(ids, TOKENS, stream=True) for ids in asked]

    async def scenario(way: SickWay, one: str, two: str) -> None:
        for url in (workers.router_url, one, two):
            await routers_are(url, 3)
            await calls.switch(url, decode="round_robin")
        way.sick = True
        ejected = 'toolkit_router_ejected_total{worker="decode-1"}'
        while not (await metrics(one)).get(ejected):
            right(await calls.all_of(one, bodies[:2], 1), asked[:2], TOKENS, reference)
        told = 'toolkit_router_notices_total{kind="ejected",outcome="taken"}'
        for url in (two, workers.router_url):

            async def heard(url: str = url) -> bool:
                return (await metrics(url)).get(told, 0.0) >= 1

            await calls.until(heard, "it is told")
        cut = way.cut
        assert cut >= 3, "of the first one that failed there"
        right(await calls.all_of(two, bodies, 1), asked, TOKENS, reference)
        assert way.cut == cut + 1, "one probe, and no more"
        before = await completed(workers.router_url)
        mine = await calls.all_of(workers.router_url, bodies, 1)
        right(mine, asked, TOKENS, reference)
        assert await completed(workers.router_url) - before == len(asked) // 2
        way.sick = False

    async def completed(url: str) -> int:
        rows = (await state(url))["workers"]
        return sum(row["completed"] for row in rows if row["name"] == "decode-1")

    worker = next(
        each
        for each in json.loads((workers.run_dir / "router.json").read_text())["workers"]
        if each["name"] == "decode-1"
    )
    parsed = urlsplit(worker["url"])
    assert parsed.hostname is not None and parsed.port is not None
    way, loop = SickWay(parsed.hostname, parsed.port), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(way.begin(), loop).result(10)
    urls = {"decode-1": f"http://127.0.0.1:{port}"}
    try:
        with (
            another(workers, tmp_path, urls=urls) as (one, _),
            another(workers, tmp_path, urls=urls) as (two, _),
        ):
            calls.run(scenario(way, one, two))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    calls.run(routers_are(workers.router_url, 1))
    calls.run(settled(workers))


def test_a_refit_spreads_and_outlives_the_router_that_made_it(
    workers: Running, tmp_path: Path
) -> None:
    """The second router is first in order of the names, so that it fits."""
    asked = [calls.prompt(f"refit-{n}", 30 + n) for n in range(48)]
    bodies = [calls.greedy(ids, 4, stream=True) for ids in asked]

    async def eldr(url: str) -> dict[str, Any]:
        return dict((await state(url))["eldr"])

    async def fits(url: str, here: bool) -> None:
        async def so() -> bool:
            return bool((await eldr(url))["fits_here"]) is here

        await calls.until(so, f"it fits: {here}")

    async def scenario(other: str, process: subprocess.Popen[bytes]) -> str:
        mine = workers.router_url
        for url in (mine, other):
            await calls.switch(url, decode="eldr")
        await fits(mine, False)
        await fits(other, True)
        before = (await eldr(mine))["version"]
        assert before == (await eldr(other))["version"]
        await calls.all_of(other, bodies, 8)
        status, told = await sent("POST", f"{await admin_of(mine)}/admin/refit", force=True)
        assert (status, told["result"]) == (200, "adopted")
        fitted = (await eldr(other))["version"]
        assert fitted != before and told["version"] == fitted

        async def has() -> bool:
            return (await eldr(mine))["version"] == fitted

        await calls.until(has, "the other one has it")
        refits = [
            asyncio.create_task(sent("POST", f"{await admin_of(url)}/admin/refit", force=True))
            for url in (other, mine)
        ]
        await asyncio.sleep(0.3)  # they are under way
        process.kill()
        there, forwarded = await asyncio.gather(*refits, return_exceptions=True)
        assert isinstance(there, Exception) and not isinstance(forwarded, BaseException)
        status, told = forwarded
        assert status == 503 and "-fits" in told["error"]["message"]
        return str(fitted)

    with another(workers, tmp_path, name="-fits") as (other, process):
        fitted = calls.run(scenario(other, process))
    calls.run(fits(workers.router_url, True))
    assert calls.run(eldr(workers.router_url))["version"] == fitted
    # It fits from here on.
    calls.run(calls.all_of(workers.router_url, bodies, 8))
    admin = calls.run(admin_of(workers.router_url))
    status, told = calls.run(sent("POST", f"{admin}/admin/refit", force=True))
    assert (status, told["result"]) == (200, "adopted")
    assert calls.run(eldr(workers.router_url))["version"] != fitted
    calls.run(settled(workers))
