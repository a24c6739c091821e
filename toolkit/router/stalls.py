"""Clients that do not take what is written to them: found, and dropped.

What such a client has asked for stays in the router's memory, its place among the connections is
taken, and closing the connection in order would wait for it. Whether a client takes something is
what its system acknowledges (TCP_INFO): the size of our own buffer may stand still, or grow, while
a slow client reads on all the time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import NamedTuple

_ACKED = struct.Struct("<Q")
_ACKED_AT = 120
"""Offset of tcpi_bytes_acked in Linux' tcp_info."""


class Seen(NamedTuple):
    """What a client had taken, and since when it has been no more."""

    taken: int
    since: float


class Stalls:
    """Connections for which something waits to be written. Pure but for what `taken` is told."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._seen: dict[object, Seen] = {}

    def look(self, connection: object, unsent: int, taken: int, now: float) -> bool:
        """Whether this one is to be dropped: it has `unsent` bytes to take and has taken nothing
        for `stall_s`. `taken`: all that it has ever taken, or what changes when it takes some."""
        if not unsent:
            self._seen.pop(connection, None)
            return False
        seen = self._seen.get(connection)
        if seen is None or seen.taken != taken:
            self._seen[connection] = Seen(taken, now)
            return False
        return now - seen.since >= self.stall_s

    def forget(self, connection: object) -> None:
        self._seen.pop(connection, None)

    def __len__(self) -> int:
        return len(self._seen)


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that wait in the router for the client to take some."""
    return transport.get_write_buffer_size()


def taken(transport: asyncio.Transport) -> int:
    """What a client's system has acknowledged in all; where nobody can tell, a number that changes
    when our own buffer does."""
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + _ACKED.size)
        return int(_ACKED.unpack_from(info, _ACKED_AT)[0])
    except (AttributeError, OSError, struct.error):
        return -transport.get_write_buffer_size()
