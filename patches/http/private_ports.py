"""What a worker's processes listen on hears the worker's own address only.

`--host` decides for HTTP and the bootstrap server. Beside them SGLang's processes open ports on all
addresses: torch's store, which takes pickles; Mooncake's two, which read and write KV memory for
whoever asks; ZeroMQ sockets wherever SGLang asks for `tcp://*`, which unpickle too. Here the store
and the message sockets are bound to the address in SGLANG_HOST_IP, which SGLang tells its peers,
and what cannot be bound is narrowed to it once it listens (`toolkit.private_sockets`). gloo listens
on the interface that has the address. The detokenizer's process loads no plugins; its sockets are
files, or with DP attention on the address of `--dist-init-addr`.
"""

import os
import socket
from ipaddress import ip_address
from typing import Protocol

from patches.base import EVERY, Hook, Patch, Process
from patches.layers import Original
from toolkit.contract.addresses import is_ipv6, tcp_url
from toolkit.limited_logs import limited_logger
from toolkit.private_sockets import interface_of, narrow_all

VARIABLE = "SGLANG_HOST_IP"
EVERYWHERE = ("*", "0.0.0.0", "[::]")
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"

log = limited_logger("toolkit.ports")


def address() -> str | None:
    """Where this worker's processes may be reached, as numbers; None: everywhere was asked for, or
    the name is nobody's."""
    told = os.environ[VARIABLE]
    try:
        found = ip_address(told)
    except ValueError:
        try:
            found = ip_address(str(socket.getaddrinfo(told, None)[0][4][0]))
        except (OSError, ValueError):
            return None
    return None if found.is_unspecified else str(found)


def bound_here(endpoint: str) -> str:
    """A ZeroMQ endpoint, less the wish to listen everywhere: `tcp://*:5` -> `tcp://127.0.0.1:5`."""
    scheme, _, place = endpoint.partition("://")
    everywhere = next((each for each in EVERYWHERE if place.startswith(f"{each}:")), None)
    if scheme != "tcp" or everywhere is None:
        return endpoint
    port = place.removeprefix(f"{everywhere}:")
    own = address()
    if own is None:
        return endpoint
    return tcp_url(own, port)


class Ipv6Socket(Protocol):
    """A ZeroMQ socket that can be told to take IPv6 addresses, too."""

    ipv6: bool


def _bind_here(original: Original[object], receiver: Ipv6Socket, addr: object) -> object:
    if not isinstance(addr, str):
        return original(receiver, addr)
    here = bound_here(addr)
    if here != addr and "[" in here:
        receiver.ipv6 = True  # else it takes no IPv6 address; SGLang asked for `*`
    return original(receiver, here)


def _narrow(original: Original[object], *args: object, **named: object) -> object:
    """Run it, then narrow what listens on all addresses by now."""
    result = original(*args, **named)
    own = address()
    if own is None:
        log.warning("%s is no single address: ports stay open on all", os.environ[VARIABLE])
        return result
    done, failed = narrow_all(own)
    if done:
        log.info("ports %s hear %s only", done, own)
    if failed:
        log.warning(
            "ports %s listen on all addresses and this kernel does not let them be narrowed: close "
            "them with a firewall (launch/README.md, Ports)",
            failed,
        )
    return result


def _store_here(
    original: Original[object],
    hostname: str,
    port: int,
    rank: int,
    world_size: int,
    timeout: object,
    use_libuv: bool = True,
) -> object:
    """Rank 0 hosts the store, on a socket that is bound before torch gets it."""
    if rank != 0:
        return original(hostname, port, rank, world_size, timeout, use_libuv)
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if is_ipv6(hostname) else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((hostname, port))
        listening.listen(1024)
    except OSError:
        # Not an address of ours, or the store is there already: torch decides, then we narrow.
        listening.close()
        return _narrow(original, hostname, port, rank, world_size, timeout, use_libuv)
    return TCPStore(
        host_name=hostname,
        port=port,
        world_size=world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
        use_libuv=use_libuv,
    )


def _gloo_here() -> None:
    own = address()
    interface = own and interface_of(own)
    if interface:
        os.environ.setdefault(GLOO_INTERFACE, interface)


PATCH = Patch(
    name="private_message_sockets",
    why="SGLang's message sockets unpickle what comes, so they must not listen everywhere",
    processes=EVERY,
    hooks=(Hook("zmq.Socket.bind", _bind_here, ("self", "addr")),),
    variable=VARIABLE,
)

SCHEDULER_PATCH = Patch(
    name="private_ports",
    why="torch's store and Mooncake listen on all addresses and ask nobody who they are",
    processes=frozenset({Process.SCHEDULER}),
    hooks=(
        Hook(
            "torch.distributed.rendezvous._create_c10d_store",
            _store_here,
            ("hostname", "port", "rank", "world_size", "timeout", "use_libuv"),
        ),
        Hook(
            "sglang.srt.distributed.device_communicators.mooncake_transfer_engine."
            "MooncakeTransferEngine.initialize",
            _narrow,
            ("self", "hostname", "device_name"),
        ),
        Hook("sglang.srt.managers.scheduler.Scheduler.get_init_info", _narrow, ("self",)),
    ),
    attach=_gloo_here,
    variable=VARIABLE,
)
