"""Listening sockets of a public port: opened here, or inherited from a process that opened them in
another network namespace."""

import os
import socket
from collections.abc import Iterable
from typing import Any

from toolkit.contract.variables import FRONT_VARIABLE

BACKLOG = 1024


def opened(found: Iterable[Any], backlog: int = BACKLOG) -> list[socket.socket]:
    """A listening socket for each answer of `getaddrinfo`. OSError when one cannot be had: then
    none is left open."""
    made: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, proto)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(backlog)
            listening.setblocking(False)
    except OSError:
        for listening in made:
            listening.close()
        raise
    return made


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen at a name or address. OSError as `opened`, or when the name is nobody's."""
    kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    return opened(socket.getaddrinfo(host or None, port, type=kind, flags=passive))


def inherited() -> list[socket.socket]:
    """Those that FRONT_VARIABLE names; it is taken out of the environment."""
    numbers = [int(number) for number in os.environ.pop(FRONT_VARIABLE, "").split(",") if number]
    return [socket.socket(fileno=number) for number in numbers]
