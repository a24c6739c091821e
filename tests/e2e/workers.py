"""What tests ask of a deployment's workers and of the router's table of them."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from tests.e2e import calls
from toolkit.launch.running import Running

CALL_TOKENS = 4


async def state(url: str) -> dict[str, Any]:
    """What the router knows; a row for each worker and DP rank."""
    async with calls.session() as http, http.get(url + "/workers") as answer:
        return await answer.json()


async def settled(deployment: Running) -> None:
    """Until every worker is up and the router knows it."""

    async def up() -> bool:
        rows = (await state(deployment.router_url))["workers"]
        return all(row["healthy"] and not row["inflight"] for row in rows)

    await calls.until(up, "all workers are healthy again")


async def settled_but_busy(deployment: Running) -> None:
    """Until every worker is up and the router knows it, whatever they run."""

    async def up() -> bool:
        rows = (await state(deployment.router_url))["workers"]
        return all(row["healthy"] and not row["stuck"] for row in rows)

    await calls.until(up, "all workers are healthy again")


async def metrics(url: str) -> dict[str, float]:
    """What the router exports, by name and labels as they are written."""
    async with calls.session() as http, http.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    rows = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def victim(deployment: Running, name: str, process: str) -> int:
    """The pid to kill: the worker's HTTP server, or the scheduler below it."""
    pid = deployment.worker(name).pid
    assert pid is not None
    if process == "server":
        return pid
    children = psutil.Process(pid).children(recursive=True)
    return int(next(child.pid for child in children if "scheduler" in " ".join(child.cmdline())))


@asynccontextmanager
async def events(worker_url: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The worker's own event stream."""

    async def lines(response: Any) -> AsyncIterator[dict[str, Any]]:
        async for line in response.content:
            yield json.loads(line)

    async with calls.session() as http, http.get(worker_url + "/toolkit/events") as response:
        assert response.status == 200
        yield lines(response)


def call_body(deployment: Running, name: str, room: int, length: int) -> dict[str, Any]:
    """A request as the router sends it to both workers."""
    port = next(w.bootstrap_port for w in deployment.plan.workers if w.role == "prefill")
    body = calls.greedy(calls.prompt(name, length), CALL_TOKENS, stream=True)
    room_of = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
    return body | room_of | {"rid": name}


async def prefilled(stream: AsyncIterator[dict[str, Any]], rid: str) -> float:
    """When the worker said so."""
    async for event in stream:
        if event["type"] == "prefill_done" and event["rid"] == rid:
            return time.monotonic()
    raise AssertionError("the event stream ended")
