"""A decode worker's DP controller with ELDR: signatures come by themselves, requests wait for them,
and never for long."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.dp.balancer import Balancer
from patches.dp.hold import GONE, HOLD_S, LATE, Holding
from patches.dp.loads import NAME
from patches.dp.locality import DpLocality
from patches.dp.prefill_events import MOST_ROOMS
from tests.present import present
from tests.unit.patches.dp.stand_ins import EPOCH, Req, Snapshot
from toolkit.contract import VERSION
from toolkit.contract.events import Hello, PrefillDone, Records, encode
from toolkit.contract.variables import DP_HOLD_VARIABLE
from toolkit.policies import make_policy
from toolkit.resources import profiles_dir
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.wire import pack

FAKE = "2.2.2.2"
PROFILE = str(profiles_dir() / "embedded")


def test_a_request_leaves_when_its_signature_is_there() -> None:
    holding, found = Holding[str](), dict[int, Any]()
    for room in (1, 2, 3):
        holding.hold(f"r{room}", room, "a:1", 0.0)
    assert holding.due(0.1, found.get, lambda source: True) == []
    found[2] = "vector"
    assert holding.due(0.2, found.get, lambda source: True) == [("r2", "vector")]
    assert len(holding) == 2
    assert holding.due(HOLD_S, found.get, lambda source: True) == [("r1", LATE), ("r3", LATE)]
    assert len(holding) == 0


def test_one_whose_prefill_is_gone_does_not_wait_for_it() -> None:
    holding = Holding[str]()
    holding.hold("a", 1, "a:1", 0.0)
    holding.hold("b", 2, "b:1", 0.0)
    assert holding.due(0.1, lambda room: None, lambda source: source == "b:1") == [("a", GONE)]
    assert holding.counters == {GONE: 1}


def test_those_that_are_aborted_leave_at_once() -> None:
    holding = Holding[str]()
    for rid in ("x-1", "x-2", "y"):
        holding.hold(rid, 1, "a:1", 0.0)
    assert [each.req for each in holding.give_up(lambda rid: rid.startswith("x"))] == ["x-1", "x-2"]
    assert len(holding) == 1


def test_a_bound_that_is_none() -> None:
    with pytest.raises(ValueError, match="cannot be held for -1 s"):
        Holding(-1)
    with pytest.raises(ValueError, match="cannot be held for nan s"):
        Holding(float("nan"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["hold", "event", "look"]), st.integers(0, 9)),
        min_size=20,
        max_size=60,
    ),
    st.floats(0.0, 5.0),
)
def test_nobody_is_held_beyond_the_bound_nor_released_twice(
    events: list[tuple[str, int]], limit: float
) -> None:
    holding, now, known = Holding[int](limit), 0.0, dict[int, Any]()
    since: dict[int, float] = {}
    for number, (event, room) in enumerate(events):
        now += 0.3
        if event == "hold":
            holding.hold(number, room, "a", now)
            since[number] = now
        elif event == "event":
            known[room] = "signature"
        for req, signature in holding.due(now, lambda room: known.pop(room, None), lambda s: True):
            began = since.pop(req)  # KeyError: released twice
            assert signature == "signature" or now - began >= limit
        assert all(now - began < limit for began in since.values())
    assert len(holding) == len(since)


class Prefill:
    """A prefill worker as far as news go: bootstrap server and event stream on one port."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.lines: Queue[bytes | None] = Queue()
        self.streams = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path.startswith("/route?"):
                    body = json.dumps({"prefill_http_port": outer.port}).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                    return
                outer.streams += 1
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._chunk(encode(outer.hello))
                while (line := outer.lines.get()) is not None:
                    self._chunk(line)
                self.close_connection = True

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tell(self, room: int, counts: np.ndarray | None, tokens: int = 50) -> None:
        """A `prefill_done` as `patches.streams.event_stream` writes it."""
        signature = None if counts is None else pack(counts, tokens, complete=True)
        self.lines.put(encode(PrefillDone("p", 0, tokens, 0, signature, room)))

    def close(self) -> None:
        self.lines.put(None)
        self.server.shutdown()
        self.server.server_close()


def hello(**changed: Any) -> Hello:
    model = calibrated(PROFILE).profile
    layers = [model.model.layers[index] for index in sorted(model.rho.mask)]
    known: dict[str, Any] = {
        "contract": VERSION,
        "fingerprint": model.model.fingerprint,
        "signature": Records(layers, model.model.experts),
        "optimistic_prefill": True,
    }
    return Hello(**(known | changed))


def counts_like(centroid: int) -> np.ndarray:
    """Counts of a prompt near one of the profile's centroids, of the mask's layers."""
    known = calibrated(PROFILE)
    weights = known.space.weights[known.space.kept].reshape(-1)
    row = known.centroids[centroid]
    counts = np.divide(row, weights, out=np.zeros_like(row), where=weights > 1e-6)
    return np.rint(200 * counts / counts.max()).astype(np.int64)


@pytest.fixture
def prefill() -> Iterator[Prefill]:
    one = Prefill(hello())
    yield one
    one.close()


def wait_for(condition: Callable[[], Any]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("this never came true")


MADE: list[DpLocality] = []


def near(ranks: int) -> DpLocality:
    MADE.append(DpLocality(PROFILE, ranks))
    return MADE[-1]


@pytest.fixture(autouse=True)
def _nobody_goes_on_listening() -> Iterator[None]:
    """A thread that asks a server that has gone asks the port's next owner, some other test's."""
    yield
    while MADE:
        MADE.pop().event.close()


def ask(room: int, port: int, rid: str = "r") -> Any:
    req = Req(rid)
    return SimpleNamespace(
        **vars(req), bootstrap_host="127.0.0.1", bootstrap_port=port, bootstrap_room=room
    )


@pytest.mark.parametrize("name", ["eldr@0", "composed@filter+eldr@0+brh+user"])
def test_the_rank_is_chosen_by_the_prompt_s_experts(prefill: Prefill, name: str) -> None:
    ranks = len(calibrated(PROFILE).centroids)
    locality = near(ranks)
    policy = make_policy(name)
    locality.attach(policy)
    balancer = Balancer(name, "decode", ranks, policy)
    balancer.look([Snapshot(EPOCH, dp_rank=rank) for rank in range(ranks)], 0.0)
    # Nobody is kept waiting for a worker that is not heard yet.
    assert not locality.hold(ask(99, prefill.port), None, FAKE, 0.0)
    wait_for(lambda: locality.event.subscribed(prefill.address))
    for room in range(ranks):
        # The port is that of the worker itself where the request does not say.
        req = ask(room, prefill.port) if room % 2 else ask(room, None)  # type: ignore[arg-type]
        req.rid = f"r{room}"
        assert locality.hold(req, prefill.port, FAKE, 1.0)
    assert locality.due(1.1) == []
    for room in reversed(range(ranks)):
        prefill.tell(room, counts_like(room))
    released: list[Any] = []
    wait_for(lambda: released.extend(locality.due(1.2)) or len(released) == ranks)  # type: ignore[func-returns-value]
    usable = [True] * ranks
    chosen = {
        req.bootstrap_room: balancer.choose(req, usable, 1.3, signature)
        for req, signature in released
    }
    assert chosen == {room: room for room in range(ranks)}
    eldr = policy.locality
    assert eldr is not None and eldr.counters.fallbacks == {}
    # What runs on a rank makes it near, until it has ended.
    assert [present(eldr.inflight_signatures).count((NAME, rank)) for rank in range(ranks)] == [
        1
    ] * ranks
    balancer.progressed([("r0", 5, ""), ("r0", 9, "finished"), ("r1", 2, "aborted")], 1.4)
    assert [present(eldr.inflight_signatures).count((NAME, rank)) for rank in range(2)] == [0, 0]


def test_news_that_come_before_the_request_are_kept_but_not_all(prefill: Prefill) -> None:
    event = near(2).event
    wait_for(lambda: event.subscribed(prefill.address))
    for room in range(MOST_ROOMS + 10):
        prefill.tell(room, None)
    seen: list[Any] = []
    wait_for(lambda: seen.append(event.take(MOST_ROOMS + 9)) or seen[-1] is not None)  # type: ignore[func-returns-value]
    assert seen[-1] == "no signature"
    assert event.take(0) is None and event.take(MOST_ROOMS // 2) is not None
    assert event.take(MOST_ROOMS // 2) is None, "it is given once"
    assert len(event._rooms) == MOST_ROOMS - 2


@pytest.mark.parametrize(
    "wrong", [{"optimistic_prefill": False}, {"signature": None}], ids=["not early", "records none"]
)
def test_a_prefill_that_could_not_tell_in_time_is_not_waited_for(
    wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    prefill = Prefill(hello(**wrong))
    try:
        locality = near(2)
        assert not locality.hold(ask(1, prefill.port), None, FAKE, 0.0)
        wait_for(lambda: "sends no signatures before its decode is known" in caplog.text)
        assert not locality.hold(ask(1, prefill.port), None, FAKE, 0.0)
    finally:
        prefill.close()


def test_a_worker_that_is_back_is_heard_again(prefill: Prefill) -> None:
    locality = near(2)
    wait_for(lambda: locality.event.subscribed(prefill.address))
    assert locality.hold(ask(7, prefill.port), None, FAKE, 0.0)
    prefill.lines.put(None)  # its stream breaks
    released: list[Any] = []
    wait_for(lambda: released.extend(locality.due(0.1)) or released)  # type: ignore[func-returns-value]
    assert released[0].signature == GONE
    wait_for(lambda: prefill.streams == 2 and locality.event.subscribed(prefill.address))
    assert locality.hold(ask(8, prefill.port), None, FAKE, 1.0)
    prefill.tell(8, counts_like(0))
    wait_for(lambda: released.extend(locality.due(1.1)) or len(released) == 2)  # type: ignore[func-returns-value]
    assert isinstance(released[1].signature, np.ndarray)


def test_a_request_without_a_prefill_is_not_held() -> None:
    locality = near(2)
    assert not locality.hold(Req(), 8998, FAKE, 0.0)
    probe = ask(0, 8998)
    probe.bootstrap_host = FAKE
    assert not locality.hold(probe, 8998, FAKE, 0.0)
    assert locality.event._up == {}, "nobody listens to a host that does not exist"
    assert not locality.hold(ask(1, None), None, FAKE, 0.0)  # type: ignore[arg-type]


def test_another_number_of_ranks_gets_centroids_of_its_own() -> None:
    policy: Any = make_policy("eldr")
    near(3).attach(policy)
    assert len(policy.centroids.rows) == 3
    assert set(policy.centroids.owner) == {(NAME, rank) for rank in range(3)}


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="TOOLKIT_DP_PROFILE=/nowhere"):
        DpLocality("/nowhere", 2)
    monkeypatch.setenv(DP_HOLD_VARIABLE, "-3")
    with pytest.raises(ValueError, match="give 0 s or more"):
        DpLocality(PROFILE, 2)
