"""Whether the process behind a socket is still the same one, with real sockets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from patches.pd import rank_sockets
from patches.pd.rank_sockets import Peer, RankSockets
from tests.ports import free_port


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[zmq.Context[Any]]:
    monkeypatch.setattr(rank_sockets, "READ_EVERY_S", 0.05)
    made = zmq.Context[Any]()
    made.setsockopt(zmq.RCVTIMEO, 10_000)
    yield made
    made.term()  # once the thread that reads monitors has closed them


@contextmanager
def rank(context: zmq.Context[Any], port: int = 0) -> Iterator[zmq.Socket[Any]]:
    """A prefill rank's end."""
    with context.socket(zmq.PULL) as socket:
        socket.linger = 0
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{port or free_port()}")
                break
            except zmq.ZMQError:  # a thread of ZeroMQ's closes the one before
                assert time.monotonic() < deadline
                time.sleep(0.01)
        yield socket


@contextmanager
def connected(
    context: zmq.Context[Any], endpoint: str, *, reconnect_ms: int = 100
) -> Iterator[zmq.Socket[Any]]:
    with context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.reconnect_ivl = reconnect_ms
        socket.connect(endpoint)
        yield socket


def becomes(sockets: RankSockets, endpoint: str, socket: Any, *wanted: Peer) -> None:
    """Until it is one of these; the same until then."""
    deadline = time.monotonic() + 10
    while (found := sockets.peer(endpoint, socket)) not in wanted:
        assert found is Peer.SAME and time.monotonic() < deadline, found
        time.sleep(0.01)


def until_heard(push: zmq.Socket[Any], pull: zmq.Socket[Any]) -> None:
    """What is sent while a connection ends is lost."""
    deadline = time.monotonic() + 10
    while not pull.poll(100):
        assert time.monotonic() < deadline
        push.send(b"2", zmq.NOBLOCK)
    assert pull.recv() == b"2"


def endpoint_of(socket: zmq.Socket[Any]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


@contextmanager
def linked(context: zmq.Context[Any]) -> Iterator[tuple[RankSockets, Any, Any, str]]:
    """A rank that has got a message, and a watched socket to it."""
    sockets = RankSockets()
    with rank(context) as pull, connected(context, endpoint_of(pull)) as push:
        where = endpoint_of(pull)
        assert sockets.peer(where, push) is Peer.SAME
        push.send(b"1")
        assert pull.recv() == b"1"
        yield sockets, pull, push, where


def test_a_process_that_stays_is_the_same(context: zmq.Context[Any]) -> None:
    with linked(context) as (sockets, _, push, where):
        assert [sockets.peer(where, push) for _ in range(3)] == [Peer.SAME] * 3


def test_so_is_one_that_was_connected_before_it_was_watched(context: zmq.Context[Any]) -> None:
    sockets = RankSockets()
    with rank(context) as pull, connected(context, endpoint_of(pull)) as push:
        push.send(b"1")
        assert pull.recv() == b"1"
        where = endpoint_of(pull)
        assert [sockets.peer(where, push) for _ in range(3)] == [Peer.SAME] * 3
        pull.close()
        becomes(sockets, where, push, Peer.GONE)


def test_one_that_was_never_there_is_gone(context: zmq.Context[Any]) -> None:
    sockets = RankSockets()
    with rank(context) as pull:
        where = endpoint_of(pull)
    with connected(context, where) as push:
        becomes(sockets, where, push, Peer.GONE)


def test_one_that_came_back_on_its_port_is_another(context: zmq.Context[Any]) -> None:
    with linked(context) as (sockets, pull, push, where):
        pull.close()
        with rank(context, int(where.rpartition(":")[2])) as again:
            until_heard(push, again)
            assert sockets.peer(where, push) is Peer.BACK
            assert sockets.peer(where, push) is Peer.SAME
        becomes(sockets, where, push, Peer.GONE)


def test_a_new_socket_to_the_same_place_starts_anew(context: zmq.Context[Any]) -> None:
    with linked(context) as (sockets, pull, push, where):
        push.close()
        with connected(context, where) as second:
            second.send(b"2")
            assert pull.recv() == b"2"
            assert [sockets.peer(where, second) for _ in range(2)] == [Peer.SAME] * 2


def test_monitors_of_closed_sockets_are_closed(context: zmq.Context[Any]) -> None:
    with linked(context) as (sockets, _, push, where):
        monitor = sockets._watched[where].monitor
        push.close()
        deadline = time.monotonic() + 10
        while not monitor.closed:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not sockets._monitors and not sockets._watched


def test_a_dead_rank_that_nobody_asks_for_stops_no_other_socket(context: zmq.Context[Any]) -> None:
    """ZeroMQ's thread waits where a monitor is full: that of the others' messages, too."""
    with linked(context) as (sockets, pull, push, _), rank(context) as dead:
        where = endpoint_of(dead)
        dead.close()
        with connected(context, where, reconnect_ms=1) as other:
            sockets.peer(where, other)
            time.sleep(3)  # 2,000 events
            push.send(b"2")
            assert pull.poll(5000) and pull.recv() == b"2"


def test_sockets_to_dead_ranks_that_are_closed_stop_no_other(context: zmq.Context[Any]) -> None:
    """The same, for a monitor that nobody has open while ZeroMQ still writes to it."""
    with linked(context) as (sockets, pull, push, _), rank(context) as dead:
        where = endpoint_of(dead)
        dead.close()
        for number in range(400):
            with connected(context, where, reconnect_ms=1) as other:
                sockets.peer(where, other)
                time.sleep(0.003)
            if number % 20 == 0:
                push.send(b"2")
                assert pull.poll(5000) and pull.recv() == b"2"


def test_without_room_for_a_monitor_it_is_not_watched() -> None:
    with zmq.Context() as small:
        small.set(zmq.MAX_SOCKETS, 3)
        sockets = RankSockets()
        with rank(small) as pull, connected(small, endpoint_of(pull)) as push:
            where = endpoint_of(pull)
            assert [sockets.peer(where, push) for _ in range(2)] == [Peer.SAME] * 2
            assert not sockets._watched


def _readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rank-sockets"}


def test_what_was_started_before_is_the_only_thread(context: zmq.Context[Any]) -> None:
    """The one that a request would start has the priority of the thread that computes."""
    before = _readers()
    sockets = RankSockets()
    sockets.start()
    (reader,) = _readers() - before
    with rank(context) as pull, connected(context, endpoint_of(pull)) as push:
        assert sockets.peer(endpoint_of(pull), push) is Peer.SAME
    deadline = time.monotonic() + 10
    while sockets._monitors:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    assert _readers() - before == {reader} and reader.is_alive()
