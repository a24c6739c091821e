"""Listening sockets that others opened on all addresses, made to hear one address only.

Mooncake's transfer engine opens its two ports on all addresses, whatever it is told, and serves
whoever comes: reads and writes of KV memory. They cannot be bound again, but Linux can narrow a
socket while it listens: to an interface (`SO_BINDTODEVICE`; of lo nothing comes from outside) or by
a filter on what a packet is for (`SO_ATTACH_FILTER`). Neither needs a privilege since Linux 5.7.
Standard library only.
"""

import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from toolkit.loopback import is_loopback

SO_ATTACH_FILTER = 26
SO_BINDTODEVICE = 25
NETWORK_HEADER = 0xFFF00000
"""`SKF_NET_OFF`: a filter's offsets count from the IP header."""
LOAD_BYTE, LOAD_WORD, RIGHT, EQUAL, RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
V4 = (4, 16, 1)
V6 = (6, 24, 4)
"""IP version, where its header has the destination, and how many words that is."""


def narrow_all(address: str) -> tuple[list[int], list[int]]:
    """Narrow every TCP socket of this process that listens on all addresses to `address`.

    Returns their ports, and the ports of those that the kernel would not let be narrowed.
    """
    done, failed = [], []
    for listening in listening_on_all():
        with closing(listening):
            port = listening.getsockname()[1]
            try:
                narrow(listening, address)
            except OSError:
                failed.append(port)
            else:
                done.append(port)
    return done, failed


def narrow(listening: socket.socket, address: str) -> None:
    """From now on it hears only what comes for `address`; connections that it has stay.

    Raises OSError: the kernel does not allow it.
    """
    if is_loopback(address):
        try:
            listening.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"lo\0")
        except PermissionError:  # before Linux 5.7
            pass
        else:
            return
    program = _only_for(address)
    held = ctypes.create_string_buffer(program)
    length = len(program) // 8
    argument = struct.pack("HL", length, ctypes.addressof(held))  # struct sock_fprog
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, argument)


def listening_on_all() -> Iterator[socket.socket]:
    """A second handle on each such socket of this process; for the caller to close."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (numbers, not paths)
        try:
            if not str(Path(f"/proc/self/fd/{name}").readlink()).startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        if _hears_all(found):
            yield found
        else:
            found.close()


def interface_of(address: str) -> str | None:
    """The name of the network interface that has this address; None: no one does."""
    import psutil

    name: str
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    return None


def _hears_all(found: socket.socket) -> bool:
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return False
    try:
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        device = found.getsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, 16).strip(b"\0")
        return not device and ipaddress.ip_address(found.getsockname()[0]).is_unspecified
    except (OSError, ValueError):
        return False


def _only_for(address: str) -> bytes:
    """A classic BPF program: take a packet whose IP destination is `address`, drop all others."""
    packed = ipaddress.ip_address(address).packed
    version, at, count = V4 if len(packed) == 4 else V6
    words = struct.unpack(f"!{count}I", packed)
    steps = [
        (LOAD_BYTE, 0, 0, NETWORK_HEADER),
        (RIGHT, 0, 0, 4),
        (EQUAL, 0, 2 * count + 1, version),
    ]
    for number, word in enumerate(words):
        steps.append((LOAD_WORD, 0, 0, NETWORK_HEADER + at + 4 * number))
        steps.append((EQUAL, 0, 2 * (count - number) - 1, word))
    steps += [(RETURN, 0, 0, 0xFFFFFFFF), (RETURN, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
