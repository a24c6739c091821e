"""Start stand-in workers and a router as processes, and end them by pid."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.preloading import Process
from tests.standin import forking
from toolkit.contract.addresses import LOOPBACK, http_url, loopback_like
from toolkit.contract.variables import ROUTER_NAME_VARIABLE

STARTS = ("tests.standin.worker", "toolkit.router", "toolkit.router.rehearsal")
RELAYS = int(os.environ.get("TOOLKIT_TEST_RELAYS", "1"))
"""Relay processes of every router that does not say how many it has: all tests of the router can be
run with several."""
FRAMES = os.environ.get("TOOLKIT_TEST_FRAMES") == "1"
"""Whether the streams of all stand-in workers go into frames."""
of_one_process = pytest.mark.skipif(RELAYS > 1, reason="of a router of one process")
WAIT_LIMIT_S = 60.0
"""Only a test that fails waits so long: a refit at nice 10 may take long on a full machine."""


@dataclass
class Standin:
    """One stand-in worker process."""

    name: str
    role: str
    args: list[str]
    port: int = 0
    host: str = LOOPBACK
    prefix: str = ""
    process: Process | None = None

    def start(self) -> None:
        arguments = ["--role", self._role(), "--port", str(self.port), *self.args]
        arguments += ["--host", self.host, "--prefix", self.prefix]
        arguments += ["--frames"] if FRAMES and "--frames" not in arguments else []
        with tempfile.TemporaryFile() as output:
            self.process = forking.start(
                "tests.standin.worker", *arguments, env=os.environ, output=output
            )
            self.port = self._said(output)

    def _said(self, output: IO[bytes]) -> int:
        """The port, which is the first thing that a stand-in says."""
        assert self.process is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            said = os.pread(output.fileno(), 1 << 16, 0)
            if said.endswith(b"\n") and said.strip().isdigit():
                return int(said)
            if ended:
                break
            time.sleep(0.002)
        self.kill()
        raise RuntimeError(f"{self.name} did not say its port:\n{said.decode(errors='replace')}")

    def _role(self) -> str:
        return "null" if self.role == "plain" else self.role

    @property
    def url(self) -> str:
        return http_url(self.host, self.port) + self.prefix

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def config(self) -> dict[str, Any]:
        bootstrap = {"bootstrap_host": self.host, "bootstrap_port": self.port}
        extra = bootstrap if self.role == "prefill" else {}
        return {"name": self.name, "role": self.role, "url": self.url, **extra}


@dataclass
class Cluster:
    """`async with Cluster(...)`: stand-ins and a router process, ready for requests."""

    prefills: int = 1
    decodes: int = 2
    plains: int = 0
    worker_args: list[str] = field(default_factory=list)
    role_args: dict[str, list[str]] = field(default_factory=dict)
    role_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: int | None = None
    """Descriptors that the router is started with, as its soft limit."""
    router_module: str = "toolkit.router"
    host: str = LOOPBACK
    prefix: str = ""
    """Behind which workers are."""
    beside: Cluster | None = None
    """Whose workers these are: then only a router is started."""
    workers: list[Standin] = field(default_factory=list)
    router: Process | None = None
    session: Any = None

    async def __aenter__(self) -> Cluster:
        if self.beside is not None:
            self.workers = self.beside.workers
        else:
            self._start_workers()
        self.port, self.admin_port = free_port(), free_port()
        self._dir = tempfile.TemporaryDirectory()
        path = self.config_path = Path(self._dir.name) / "router.json"
        config = {
            "host": self.host,
            "port": self.port,
            "admin_port": self.admin_port,
            "rerun_wait_s": 10,
            "worker_api_key_env": "TOOLKIT_WORKER_KEY",
            "workers": [{**w.config(), **self.role_config.get(w.role, {})} for w in self.workers],
            **({"relays": RELAYS} if self.router_module == "toolkit.router" else {}),
            **self.config,
        }
        path.write_text(json.dumps(config))
        self.log = Path(self._dir.name) / "router.log"
        # A test of a part of a router has given this process a router's name.
        inherited = {k: v for k, v in os.environ.items() if k != ROUTER_NAME_VARIABLE}
        with self.log.open("wb") as log:
            self.router = forking.start(
                self.router_module,
                str(path),
                env={**inherited, "TOOLKIT_WORKER_KEY": "standin", **self.env},
                output=log,
            )
        if self.files is not None:  # long before the router looks at it
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.prlimit(self.router.pid, resource.RLIMIT_NOFILE, (self.files, hard))
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(60)
        )
        await self.until_ready()
        return self

    def _start_workers(self) -> None:
        roles = ["prefill"] * self.prefills + ["decode"] * self.decodes + ["plain"] * self.plains
        seen: dict[str, int] = {}
        for role in roles:
            index = seen.setdefault(role, 0)
            seen[role] += 1
            args = [*self.worker_args, *self.role_args.get(role, [])]
            worker = Standin(f"{role}-{index}", role, args, host=self.host, prefix=self.prefix)
            worker.start()
            self.workers.append(worker)

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        if self.router is not None and self.router.poll() is None:
            self.router.send_signal(signal.SIGTERM)
            try:
                self.router.wait(10)
            except subprocess.TimeoutExpired:
                self.router.kill()
                self.router.wait()
        for worker in self.workers if self.beside is None else ():
            worker.kill()
        self._dir.cleanup()

    @property
    def url(self) -> str:
        return http_url(self.host, self.port)

    @property
    def admin(self) -> str:
        """Where the admin's endpoints answer, as no key is asked for there."""
        return http_url(loopback_like(self.host), self.admin_port)

    def worker(self, name: str) -> Standin:
        return next(worker for worker in self.workers if worker.name == name)

    async def until_ready(self) -> None:
        for _ in range(500):
            assert self.router is not None
            if self.router.poll() is not None:
                raise RuntimeError(f"the router ended:\n{self.log.read_text()}")
            try:
                async with self.session.get(f"{self.url}/readiness") as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)
        else:
            raise RuntimeError(f"the router did not get ready:\n{self.log.read_text()}")
        await self.until(lambda state: all(w["healthy"] for w in state["workers"]))

    async def until(self, condition: Any, seconds: float = WAIT_LIMIT_S) -> dict[str, Any]:
        """Poll /workers until `condition(state)`; the state, or AssertionError with the last."""
        return await _poll(self.state, condition, seconds)

    async def state(self) -> dict[str, Any]:
        key = self.env.get(self.config.get("admin_key_env", ""))
        url, headers = self.admin, {}
        if key is not None:  # then the admin comes by the clients' port
            url, headers = self.url, {"Authorization": f"Bearer {key}"}
        async with self.session.get(f"{url}/workers", headers=headers) as response:
            return await response.json()

    async def stats(self, name: str) -> dict[str, Any]:
        """What a worker says of itself."""
        async with self.session.get(f"{self.worker(name).url}/stats") as response:
            return await response.json()

    async def make(self, name: str, mode: str) -> None:
        """Make a worker sick, or well again (`tests.standin.faults`)."""
        url = f"{self.worker(name).url}/standin/mode"
        async with self.session.post(url, data=mode.encode()) as response:
            assert response.status == 200, f"{mode}: {response.status}"

    async def until_stats(self, condition: Any, seconds: float = WAIT_LIMIT_S) -> None:
        """As `until`, of every worker's `stats` by name: for what the router sends besides answers,
        which may come behind them."""

        async def ask() -> dict[str, Any]:
            return {worker.name: await self.stats(worker.name) for worker in self.workers}

        await _poll(ask, condition, seconds)


async def _poll(
    ask: Callable[[], Awaitable[dict[str, Any]]], condition: Any, seconds: float
) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + seconds
    state = await ask()
    while not condition(state):
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"still not so after {seconds} s: {state}")
        await asyncio.sleep(0.01)
        state = await ask()
    return state
