"""Who gets in, on real workers: their key, their ports, and where the key must not show."""

import asyncio
import json
import socket
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.e2e import calls
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch import readiness
from toolkit.launch.running import Running
from toolkit.router.about_workers import SHOWN

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ENDPOINTS = (
    ("GET", "/health"),
    ("GET", "/health_generate"),
    ("GET", "/server_info"),
    ("GET", "/toolkit/events"),
    ("GET", "/toolkit/experts"),
    ("GET", "/metrics"),
    ("GET", "/no/such/path"),
    ("POST", "/generate"),
    ("POST", "/abort_request"),
    ("POST", "/flush_cache"),
    ("OPTIONS", "/generate"),
)


def family(up: Running) -> list[psutil.Process]:
    """Every process of the workers, and the router."""
    workers = {row.pid: row for row in up.workers}
    own = [psutil.Process(pid) for pid in (*workers, up.router_pid) if pid is not None]
    return [each for process in own for each in (process, *process.children(recursive=True))]


def test_a_worker_answers_nobody_without_the_key_of_its_run(deployment: Running) -> None:
    async def statuses(headers: dict[str, str]) -> dict[tuple[str, str, str], int]:
        found = {}
        async with aiohttp.ClientSession(headers=headers) as http:
            for worker in deployment.workers:
                for method, path in ENDPOINTS:
                    async with http.request(method, worker.url + path, json={}) as answer:
                        found[worker.name, method, path] = answer.status
        return found

    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": deployment.worker_key}):
        assert set(asyncio.run(statuses(headers)).values()) == {401}
    for worker in deployment.workers:
        assert readiness.get(worker.url + "/health")[0] == 200


def test_the_key_is_in_environments_and_nowhere_else(deployment: Running) -> None:
    key = deployment.worker_key
    calls.run(
        calls.all_of(deployment.router_url, [calls.greedy(calls.prompt("key", 20), 4, False)], 1)
    )
    for url in ("/server_info", "/get_server_info", "/get_model_info", "/v1/models", "/workers"):
        status, body = readiness.get(deployment.router_url + url)
        assert status == 200, url
        assert key.encode() not in body, url
        if url in SHOWN:
            told = json.loads(body)
            assert told["served_model_name"] and set(told) <= SHOWN[url]
            assert str(Path.home()).encode() not in body
    for path in deployment.run_dir.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path
    for process in family(deployment):
        assert not any(key in word for word in process.cmdline()), process
        if process.name().startswith("python"):
            assert process.environ()[WORKER_KEY_VARIABLE] == key
    assert key.encode() not in Path("/proc/self/environ").read_bytes()


def test_no_port_of_a_run_hears_another_address_than_loopback(deployment: Running) -> None:
    addresses = [
        each.address
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family in (socket.AF_INET, socket.AF_INET6) and not _own(each.address)
    ]
    ports = {
        each.laddr.port: process
        for process in family(deployment)
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert len(ports) > 10  # HTTP, bootstrap, message sockets, gloo, torch, Mooncake
    reached = [
        (address, port, ports[port].name())
        for address in addresses
        for port in ports
        if _connects(address, port)
    ]
    assert reached == []


def _own(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _connects(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), 0.5):
            return True
    except OSError:
        return False
