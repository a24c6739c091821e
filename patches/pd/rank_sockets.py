"""A decode worker's sockets to prefill ranks: was a connection lost since the last question?

ZeroMQ connects again by itself and says nothing, so what is sent to a process that is gone waits in
the socket, and a process that came back on the same port gets messages about which it knows
nothing. But ZeroMQ tells a monitor of each connection that ends: at once where a process was
killed, since its kernel closes what it had open.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from enum import StrEnum
from typing import Any


class Peer(StrEnum):
    """What became of the process at the other end since the last question."""

    SAME = "same"
    BACK = "back"
    """The connection was lost, and there is one again."""
    GONE = "gone"
    """The connection was lost, and there is none."""


class RankSockets:
    """Watches ZeroMQ sockets, by their endpoints (`tcp://ADDRESS:PORT`). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[Any, Any]] = {}
        """The socket, and its monitor's."""

    def peer(self, endpoint: str, socket: Any) -> Peer:
        """What became of it since the last question; the first one begins to watch."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        lost, connected = False, True
        with self._lock:
            before, monitor = self._watched.get(endpoint, (None, None))
            if before is not socket:
                self._watch(endpoint, socket)
                return Peer.SAME
            while monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                connected = recv_monitor_message(monitor)["event"] == zmq.EVENT_CONNECTED
                lost = lost or not connected
        if not lost:
            return Peer.SAME
        return Peer.BACK if connected else Peer.GONE

    def forget(self, endpoint: str) -> None:
        """Before its socket is closed."""
        with self._lock:
            self._drop(endpoint)

    def _watch(self, endpoint: str, socket: Any) -> None:
        import zmq

        # SGLang closes sockets of hosts whose heartbeats failed, and says nothing.
        for other in [name for name, (known, _) in self._watched.items() if known.closed]:
            self._drop(other)
        self._drop(endpoint)
        ends = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CLOSED
        # A monitor takes two sockets more, of which 0.5.17 allows some 1,000: a rank that is not
        # watched is found by heartbeats.
        with suppress(zmq.ZMQError):
            monitor = socket.get_monitor_socket(zmq.EVENT_CONNECTED | ends)
            self._watched[endpoint] = (socket, monitor)

    def _drop(self, endpoint: str) -> None:
        _, monitor = self._watched.pop(endpoint, (None, None))
        if monitor is not None:
            monitor.close()
