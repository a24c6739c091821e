"""A decode worker's sockets to prefill ranks: was a connection lost since the last question?

ZeroMQ connects again by itself and says nothing, so what is sent to a process that is gone waits in
the socket, and a process that came back on the same port gets messages about which it knows
nothing. But ZeroMQ tells a monitor of each connection that ends: at once where a process was
killed, since its kernel closes what it had open.

A monitor must be read and may not be closed too early: ZeroMQ's I/O thread writes to it and waits,
for ever, once it holds 2,000 events or nobody is at its other end. Then no socket of the context
sends any more. A socket to a dead process writes ten events a second. So a thread reads
what nobody asks for, a monitor has no limit, and it is closed once ZeroMQ says that it wrote its
last event (`socket_base_t::monitor_event` and `stop_monitor`, libzmq 4.3.5).
"""

import itertools
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

READ_EVERY_S = 1.0


class Peer(StrEnum):
    """What became of the process at the other end since the last question."""

    SAME = "same"
    BACK = "back"
    """The connection was lost, and there is one again."""
    GONE = "gone"
    """The connection was lost, and there is none."""


@dataclass(eq=False)
class _Watched:
    """A socket, its monitor's, and what the monitor told since the last question."""

    socket: Any
    monitor: Any
    lost: bool = False
    connected: bool = True
    ended: bool = False
    """ZeroMQ will write no event again."""

    def read(self) -> None:
        """All that the monitor told by now."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        try:
            while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                event = recv_monitor_message(self.monitor)["event"]
                if event == zmq.EVENT_MONITOR_STOPPED:
                    self.ended = True
                else:
                    self.connected = event == zmq.EVENT_CONNECTED
                    self.lost = self.lost or not self.connected
        except zmq.ContextTerminated:  # which waits until each socket is closed
            self.ended = True


class RankSockets:
    """Watches ZeroMQ sockets, by their endpoints (`tcp://ADDRESS:PORT`). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._monitors: list[_Watched] = []
        """All whose monitors are open: those watched, and sockets that were closed."""
        self._names = itertools.count()
        self._reading = self._stays = False
        """Whether the thread runs that reads what nobody asks for, and whether it goes on for
        ever."""

    def start(self) -> None:
        """Start the thread that reads now, and for good. A thread has the priority of the one that
        starts it, and a scheduler's own steps back later (`patches.cpu.background`)."""
        with self._lock:
            self._stays = True
            self._begin()

    def _begin(self) -> None:
        if not self._reading:
            self._reading = True
            threading.Thread(target=self._read, name="rank-sockets", daemon=True).start()

    def peer(self, endpoint: str, socket: Any) -> Peer:
        """What became of it since the last question; the first one begins to watch."""
        with self._lock:
            watched = self._watched.get(endpoint)
            if watched is None or watched.socket is not socket:
                self._watch(endpoint, socket)
                return Peer.SAME
            watched.read()
            lost, watched.lost = watched.lost, False
        if not lost:
            return Peer.SAME
        return Peer.BACK if watched.connected else Peer.GONE

    def _watch(self, endpoint: str, socket: Any) -> None:
        import zmq

        self._watched.pop(endpoint, None)
        ends = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_MONITOR_STOPPED
        # A monitor takes two sockets more, of which 0.5.17 allows some 1,000: a rank that is not
        # watched is found by heartbeats.
        with suppress(zmq.ZMQError):
            monitor = socket.context.socket(zmq.PAIR)
            monitor.setsockopt(zmq.RCVHWM, 0)
            # pyzmq's own name holds the file descriptor's number, which a socket that is just being
            # closed may still have.
            name = f"inproc://rank-{id(self)}-{next(self._names)}"
            try:
                socket.monitor(name, zmq.EVENT_CONNECTED | ends)
                monitor.connect(name)
            except zmq.ZMQError:
                socket.monitor(None, 0)
                monitor.close()
                raise
            self._watched[endpoint] = _Watched(socket, monitor)
            self._monitors.append(self._watched[endpoint])
            self._begin()

    def _read(self) -> None:
        """What nobody asks for, until no monitor is left, or for ever."""
        while True:
            time.sleep(READ_EVERY_S)
            with self._lock:
                for watched in self._monitors:
                    watched.read()
                    if watched.ended:
                        watched.monitor.close()
                self._monitors = [watched for watched in self._monitors if not watched.ended]
                self._watched = {
                    name: watched for name, watched in self._watched.items() if not watched.ended
                }
                if not self._monitors and not self._stays:
                    self._reading = False
                    return
