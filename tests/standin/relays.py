"""The processes of a router of a test, by what the system calls them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.standin.cluster import Cluster

DECIDER = "tk-decider"
NEXT = "tk-next"
"""The decider process of an upgrade, until it is its turn."""
RELAYS = 2
UPGRADE = "/admin/upgrade"
UPGRADE_S = 120.0
"""Only a test that fails waits so long: a rehearsal may take long on a full machine."""


def processes(cluster: Cluster) -> dict[str, psutil.Process]:
    """By name: `tk-decider`, `tk-relay-1`. A process that has just been forked has no name yet."""
    assert cluster.router is not None
    children = psutil.Process(cluster.router.pid).children()
    named = {}
    for child in children:
        try:
            named[child.name()] = child
        except psutil.NoSuchProcess:
            continue
    return {name: child for name, child in named.items() if name.startswith("tk-")}


async def upgrade(cluster: Cluster, drain_s: float | None = None) -> dict[str, Any]:
    """Order an upgrade, and wait until it is done or has failed; what is told then."""
    await order_upgrade(cluster, drain_s)
    return await until_upgrade(cluster, "done", "failed")


async def order_upgrade(cluster: Cluster, drain_s: float | None = None) -> None:
    body = {} if drain_s is None else {"drain_s": drain_s}
    async with cluster.session.post(f"{cluster.admin}{UPGRADE}", json=body) as answer:
        assert answer.status == 200, await answer.text()


async def until_upgrade(cluster: Cluster, *phases: str) -> dict[str, Any]:
    """Wait until it is in one of these phases."""
    deadline = time.monotonic() + UPGRADE_S
    told: dict[str, Any] = {}
    while told.get("phase") not in phases:
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.005)
        try:
            async with cluster.session.get(f"{cluster.admin}{UPGRADE}") as answer:
                told = await answer.json()
        except aiohttp.ClientError:  # the process that would have said it makes room
            pass
    return told


async def kill(cluster: Cluster, name: str) -> None:
    """End it for good, and wait until another one has its name."""
    pid = processes(cluster)[name].pid
    os.kill(pid, signal.SIGKILL)
    while True:
        now = processes(cluster).get(name)
        if now is not None and now.pid != pid:
            return
        await asyncio.sleep(0.005)


def clients_of(cluster: Cluster, name: str) -> set[int]:
    """The clients' ports of the connections that a relay has."""
    found = processes(cluster)[name].net_connections("tcp")
    return {
        each.raddr.port
        for each in found
        if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == cluster.port
    }


def accepts(cluster: Cluster, name: str) -> bool:
    """Whether a relay takes clients: it looks at the socket that listens. (All of the router have
    it.)"""
    found = processes(cluster).get(name)
    if found is None:
        return False
    folder = Path(f"/proc/{found.pid}")
    number = {each.fd for each in found.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    watched = "".join(
        each.read_text()
        for each in (folder / "fdinfo").iterdir()
        if (folder / "fd" / each.name).readlink().name.startswith("anon_inode:[eventpoll]")
    )
    return any(f"tfd: {fd:>8} " in watched for fd in number)


async def until_all_accept(cluster: Cluster) -> None:
    """Every relay takes clients, or one would have them all."""
    while any(not accepts(cluster, f"tk-relay-{relay + 1}") for relay in range(RELAYS)):
        await asyncio.sleep(0.01)
