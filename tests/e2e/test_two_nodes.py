"""One server on two nodes, both of this machine: 127.0.0.1 and 127.0.0.2, a DP-attention rank each.

Ranks send their loads over the network then, and `--load-balance-method` decides which process of
node 0 receives them.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import worker_process
from tests.ports import free_port
from toolkit.contract.events import Event, Hello, LoadReading, decode
from toolkit.launch.plan import DIST_PORTS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.slow]

TOKENS = 60


class Listener:
    """What a worker says on its event stream, from its first answer on."""

    def __init__(self, url: str) -> None:
        self.events: list[Event] = []
        self._url = url
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                with urllib.request.urlopen(self._url + "/toolkit/events", timeout=10) as stream:
                    for line in stream:
                        self.events.append(decode(line))
            except OSError:
                time.sleep(0.02)

    def loads(self, rank: int, since: int = 0) -> list[LoadReading]:
        found = [each for each in self.events[since:] if isinstance(each, LoadReading)]
        return [each for each in found if each.dp_rank == rank]


@pytest.fixture(scope="module", params=["total_tokens", "round_robin"])
def two_nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Listener]]:
    """Node 0's URL, and who has listened to it since it began to answer."""
    folder = tmp_path_factory.mktemp("two-nodes")
    port, dist = free_port(), free_port(DIST_PORTS)
    flags = (
        "--tp", "2", "--dp", "2", "--enable-dp-attention", "--enable-dp-lm-head",
        "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{dist}",
        "--load-balance-method", request.param,
    )  # fmt: skip
    bound = worker_process.TWO_RANKS
    second = worker_process.start_second_node(port, *flags, log=folder / "node-1.log", **bound)
    try:
        listener = Listener(f"http://127.0.0.1:{port}")
        log = folder / "node-0.log"
        with worker_process.worker_at(port, *flags, log=log, **bound) as url:
            wait_until_warm(url)
            yield url, listener
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
        second.wait()


def wait_until_warm(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def generate(url: str, rank: int) -> Any:
    body = {
        "text": "Tell me of the sea.",
        "routed_dp_rank": rank,
        "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0},
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_hello_says_the_slots_of_a_rank(two_nodes: tuple[str, Listener]) -> None:
    """Also when it is asked before the first request: the loads were not received until then."""
    hellos = [each for each in two_nodes[1].events if isinstance(each, Hello)]
    assert hellos and [hello.max_running_requests for hello in hellos] == [8] * len(hellos)


@pytest.mark.parametrize("rank", [0, 1])
def test_loads_move_while_nothing_is_dispatched(two_nodes: tuple[str, Listener], rank: int) -> None:
    url, listener = two_nodes
    since = len(listener.events)
    generate(url, rank)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        loads = listener.loads(rank, since)
        if loads and not loads[-1].running:
            break
        time.sleep(0.02)
    running = [load.used_tokens for load in loads if load.running]
    assert len(set(running)) > TOKENS // 4, "a step of it was seen now and then at least"
    assert not loads[-1].running and not loads[-1].used_tokens
