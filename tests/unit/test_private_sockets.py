"""Sockets that listen on all addresses, narrowed to one; SGLang's own functions that open them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from patches.http import private_ports
from tests.sglang_python import found_by
from toolkit import private_sockets


@contextmanager
def everywhere(family: socket.AddressFamily) -> Iterator[tuple[socket.socket, int]]:
    with socket.socket(family) as listening:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("", 0))
        listening.listen()
        yield listening, listening.getsockname()[1]


def hears(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), 0.3):
            return True
    except OSError:
        return False


def others() -> list[str]:
    """Addresses of this machine that are not loopback."""
    return [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def test_of_loopback_only_this_machine_is_heard(family: socket.AddressFamily) -> None:
    with everywhere(family) as (listening, port):
        assert all(hears(address, port) for address in ("127.0.0.1", *others()))
        done, failed = private_sockets.narrow_all("127.0.0.1")
        assert port in done and not failed
        device = listening.getsockopt(socket.SOL_SOCKET, private_sockets.SO_BINDTODEVICE, 16)
        assert device.strip(b"\0") == b"lo"
        assert hears("127.0.0.1", port)
        assert not any(hears(address, port) for address in others())
        assert port not in private_sockets.narrow_all("127.0.0.1")[0]  # it is already


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def test_of_another_address_only_what_is_for_it_is_heard(
    family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two loopback addresses stand for two of a machine that has several.
    monkeypatch.setattr(private_sockets, "is_loopback", lambda host: False)
    with everywhere(family) as (listening, port):
        assert hears("127.0.0.3", port)
        private_sockets.narrow(listening, "127.0.0.2")
        assert hears("127.0.0.2", port)
        assert not hears("127.0.0.3", port)
        assert not hears("::1", port)


def test_of_an_ipv6_address_only_what_is_for_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_sockets, "is_loopback", lambda host: False)
    with everywhere(socket.AF_INET6) as (listening, port):
        assert hears("::1", port)
        private_sockets.narrow(listening, "::1")
        assert hears("::1", port)
        assert not hears("127.0.0.1", port)
        private_sockets.narrow(listening, "fd00::1:2:3")
        assert not hears("::1", port)


def test_a_bound_socket_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound, socket.socket() as idle:
        idle.bind(("", 0))
        done, failed = private_sockets.narrow_all("127.0.0.1")
        assert not {bound.getsockname()[1], idle.getsockname()[1]} & {*done, *failed}


def test_zeromq_binds_to_the_worker_s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(private_ports.VARIABLE, "10.0.0.1")
    for endpoint, bound in (
        ("tcp://*:5", "tcp://10.0.0.1:5"),
        ("tcp://0.0.0.0:*", "tcp://10.0.0.1:*"),
        ("tcp://[::]:5", "tcp://10.0.0.1:5"),
        ("tcp://10.0.0.9:5", "tcp://10.0.0.9:5"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
        ("inproc://*:5", "inproc://*:5"),
    ):
        assert private_ports.bound_here(endpoint) == bound
    monkeypatch.setenv(private_ports.VARIABLE, "fd00::1")
    assert private_ports.bound_here("tcp://*:5") == "tcp://[fd00::1]:5"
    for told, own in (("localhost", "127.0.0.1"), ("0.0.0.0", None), ("no.such.invalid", None)):
        monkeypatch.setenv(private_ports.VARIABLE, told)
        assert private_ports.address() in (own, "::1" if own else None)


OPENED = """
import datetime, json, os
from patches.base import Process, enter
enter(Process.SCHEDULER)
import patches
patches.register()
import psutil, torch, zmq
from sglang.srt.utils import network
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import (
    MooncakeTransferEngine,
)
from toolkit import private_sockets

def bound():
    return {each.laddr.port: each.laddr.ip for each in psutil.Process().net_connections("tcp")
            if each.status == "LISTEN"}

context = zmq.Context()
port, sends = network.get_zmq_socket(context, zmq.PUSH)
messages = bound()[port]

port = network.get_free_port()
for rank in (0,):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=1,
        timeout=datetime.timedelta(seconds=20))
store = bound()[port]
torch.distributed.barrier()

before = set(bound())
os.environ["MC_FORCE_TCP"] = "1"
engine = MooncakeTransferEngine.__new__(MooncakeTransferEngine)
from mooncake.engine import TransferEngine
engine.engine, engine.gpu_id = TransferEngine(), 0
engine.initialize(hostname="127.0.0.1", device_name="")
opened = set(bound()) - before
narrowed = {}
for name in os.listdir("/proc/self/fd"):
    try:
        import socket
        found = socket.socket(fileno=os.dup(int(name)))
        if found.family in (2, 10) and found.getsockname()[1] in opened:
            device = found.getsockopt(socket.SOL_SOCKET, 25, 16).strip(bytes(1)).decode()
            narrowed[found.getsockname()[1]] = device
    except OSError:
        pass
left = [each.getsockname()[1] for each in private_sockets.listening_on_all()]
print(json.dumps({"messages": messages, "store": store, "others": sorted(set(bound().values())),
                  "mooncake": [len(opened), sorted(set(narrowed.values()))], "left": left,
                  "gloo": os.environ.get("GLOO_SOCKET_IFNAME")}))
"""


@pytest.fixture(scope="module")
def opened() -> dict[str, Any]:
    """What a scheduler's libraries listen on, with the patches."""
    return found_by(OPENED, **{private_ports.VARIABLE: "127.0.0.1"})


def test_the_ports_of_a_scheduler_hear_loopback_only(opened: dict[str, Any]) -> None:
    assert opened["messages"] == "127.0.0.1"
    assert opened["store"] == "127.0.0.1"
    assert opened["gloo"] == "lo"
    assert opened["mooncake"] == [2, ["lo"]]
    assert opened["left"] == []
