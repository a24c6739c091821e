"""One server on two nodes, both of this machine: 127.0.0.1 and 127.0.0.2, a DP-attention rank each.

Ranks send their loads over the network then, and `--load-balance-method` decides which process of
node 0 receives them. And they run their experts together.
"""

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e import worker_process
from tests.ports import free_port
from toolkit.contract.events import Event, Hello, LoadReading, decode
from toolkit.contract.frames import StepsHead, decode_head
from toolkit.embedded import model_path
from toolkit.launch.plan import DIST_PORTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.touched("two-nodes"),
]

TOKENS = 60
TEXTS = ("Tell me of the sea.", "def binary_search(values, wanted):")
"""Of each rank: their tokens use other experts."""
LAYERS = json.loads((model_path() / "config.json").read_text())["num_hidden_layers"]


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
        "--load-balance-method", request.param, "--enable-return-routed-experts",
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
        worker_process.end(second)


def wait_until_warm(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def generate(url: str, rank: int, **more: Any) -> Any:
    body = more | {
        "text": TEXTS[rank],
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
        if loads and not loads[-1].running and not loads[-1].used_tokens:
            break
        time.sleep(0.02)
    running = [load.used_tokens for load in loads if load.running]
    assert len(set(running)) > TOKENS // 4, "a step of it was seen now and then at least"
    assert not loads[-1].running and not loads[-1].used_tokens


class Experts:
    """What tokens used by SGLang's answers, and steps by `GET /toolkit/experts`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ids: dict[int, np.ndarray] = {}
        """By rank: those of the generated tokens that were run, int32 [tokens, layers, top_k]."""
        self.distinct: dict[int, list[np.ndarray]] = {0: [], 1: []}
        """By rank: a row of distinct experts by layer for each decode step."""
        self._stream = urllib.request.urlopen(url + "/toolkit/experts", timeout=30)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in iter(self._stream.readline, b""):
            head = decode_head(line)
            body = self._stream.read(head.bytes)
            if isinstance(head, StepsHead):
                rows = np.frombuffer(body, np.float32).reshape(head.shape)
                rows = rows[rows[:, head.fields.index("decode")] == 1]
                self.distinct[head.dp_rank] += list(rows[:, len(head.fields) :])

    def ask(self, rank: int) -> None:
        meta = generate(self._url, rank, return_routed_experts=True)["meta_info"]
        ids = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
        tokens = meta["prompt_tokens"] + meta["completion_tokens"] - 1
        self.ids[rank] = ids.reshape(tokens, LAYERS, -1)[meta["prompt_tokens"] :]

    def complete(self) -> bool:
        return all(len(self.distinct[r]) == len(self.ids.get(r, ())) > 0 for r in (0, 1))


def distinct(*ids: np.ndarray) -> list[int]:
    """Distinct experts by layer of these tokens, int32 [layers, top_k] each."""
    together = np.concatenate(ids, axis=1)
    return [len(set(layer[layer >= 0].tolist())) for layer in together]


def test_the_step_log_counts_the_experts_of_both_ranks(two_nodes: tuple[str, Listener]) -> None:
    """By the experts of every token, for which the two requests ask."""
    url, _ = two_nodes
    experts = Experts(url)
    threads = [threading.Thread(target=experts.ask, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 10
    while not experts.complete() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert experts.complete(), {rank: len(rows) for rank, rows in experts.distinct.items()}
    # A request is alone on its rank, so its n-th token is the n-th decode step there. By how many
    # steps the second one came later is not said: one number explains every row, or it is wrong.
    wrong = [_mismatches(experts, later) for later in range(-TOKENS, TOKENS)]
    assert wrong.count(0) == 1
    assert abs(wrong.index(0) - TOKENS) < TOKENS // 2, "they ran side by side"


def _mismatches(experts: Experts, later: int) -> int:
    """Rows of rank 0 and 1 that differ from what their tokens used together, if step n of rank 0
    was step n - `later` of rank 1. A step in which the other one was prefilled is not known."""
    wrong = 0
    for rank, other, ahead in ((0, 1, -later), (1, 0, later)):
        theirs = experts.ids[other]
        for n, row in enumerate(experts.distinct[rank]):
            at = n + ahead
            beside = [theirs[at]] if 0 <= at < len(theirs) else []
            exact = row.tolist() == distinct(experts.ids[rank][n], *beside)
            wrong += not exact and not (at == -1 and not row.any())
    return wrong
