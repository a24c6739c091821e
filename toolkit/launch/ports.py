"""Choose free TCP ports that stay ours across a worker's restart.

They are taken below the kernel's ephemeral range: a port inside it may become some outgoing
connection's source port while its worker is down, and the restart would fail.
"""

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from toolkit.contract.addresses import is_ipv6

LOWEST = 20000
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True when `port` can be bound on `host` now."""
    family = socket.AF_INET6 if is_ipv6(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # As the servers do: a port in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def _is_free_everywhere(port: int) -> bool:
    return is_free(port, "0.0.0.0") and (not socket.has_dualstack_ipv6() or is_free(port, "::"))


class FreePorts:
    """Hands out ports that are free on this machine, never one twice; those `between` two numbers,
    the upper one left out, or else any outside the ephemeral range."""

    def __init__(
        self,
        taken: Iterable[int] = (),
        rng: random.Random | None = None,
        between: tuple[int, int] | None = None,
    ) -> None:
        self._taken = set(taken)
        self._rng = rng or random.SystemRandom()
        self._low, self._high = between or _outside_ephemeral()

    def take(self, count: int = 1) -> int:
        """The first of `count` consecutive free ports. OSError when none is found."""
        for _ in range(2000):
            first = self._rng.randrange(self._low, self._high - count)
            block = range(first, first + count)
            if self._taken.isdisjoint(block) and all(map(_is_free_everywhere, block)):
                self._taken.update(block)
                return first
        raise OSError(f"no {count} consecutive free ports in {self._low}..{self._high}")


class CountedPorts:
    """Hands out ports upward from a base: every host of a deployment computes the same ones."""

    def __init__(self, base: int, taken: Iterable[int] = ()) -> None:
        self._next = base
        self._taken = set(taken)

    def take(self, count: int = 1) -> int:
        """The first of `count` consecutive ports that nothing else in the plan uses."""
        while not self._taken.isdisjoint(range(self._next, self._next + count)):
            self._next += 1
        first = self._next
        self._next += count
        return first


def _outside_ephemeral() -> tuple[int, int]:
    try:
        low, high = (int(x) for x in RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    if low - LOWEST >= 2000:
        return LOWEST, low
    if 65536 - high >= 2000:
        return high + 1, 65536
    return LOWEST, 65536
