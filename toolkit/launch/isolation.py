"""A network namespace of a deployment's own (`isolate: true`), on Linux, on a single machine.

Its workers, its router's port for orders and all that libraries open then listen where no other
process of the machine can come, root's apart. The public port alone is opened before, in the
namespace of whoever starts it, and inherited by the router; it listens inside too, for the
launcher's own checks. Nothing inside reaches the network: weights must lie on the disk.

A user without privileges gets a user namespace around it, with his own id and nobody else's.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from toolkit.contract.addresses import host_port
from toolkit.front import listen
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.plan import Plan
from toolkit.loopback import is_loopback

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS = 0x8913, 0x8914, 0x8916  # SIOCGIFFLAGS, SIOCSIF...
_UP = 0x1


def begin(plan: Plan) -> list[socket.socket]:
    """Open the public ports of `plan`, then move this process into a new network namespace.

    For a process of one thread. Its children are in the namespace too.

    Raises:
        LaunchError: a public port cannot be opened, or the kernel allows no namespace.
    """
    host, front = plan.routers[0].host, list[socket.socket]()
    for router in plan.routers:
        try:
            front += listen(host, router.port)
        except OSError as error:
            for each in front:
                each.close()
            what = f"cannot listen on {host_port(host, router.port)}: {error.strerror}"
            repair = f"end what listens there (ss -ltnp 'sport = :{router.port}'), or set another"
            raise LaunchError([Problem("router.port", what, f"{repair} port")]) from error
    try:
        enter_new()
        _bring_up("lo")
        if not is_loopback(host) and not ip_address(host).is_unspecified:
            _give_address("lo:1", host)
    except OSError as error:
        for each in front:
            each.close()
        what = f"the kernel gives no network namespace: {error.strerror}"
        repair = (
            "allow them (sysctl kernel.unprivileged_userns_clone=1, or on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0), give CAP_SYS_ADMIN, or remove isolate"
        )
        raise LaunchError([Problem("isolate", what, repair)]) from error
    return front


def refuse_without(plan: Plan, front: Sequence[socket.socket]) -> None:
    """LaunchError: `plan` is to be isolated, and nobody has called `begin`."""
    if plan.isolate and not front:
        repair = "start it with `toolkit launch`, or remove isolate"
        what = "only `toolkit launch` can give a deployment a namespace of its own"
        raise LaunchError([Problem("isolate", what, repair)])


def enter_new() -> None:
    """A new network namespace for this process, empty, its loopback down. OSError: not allowed."""
    try:
        _call("unshare", NEW_NET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", NEW_USER | NEW_NET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def enter(pid: int) -> None:
    """This thread into the network namespace of process `pid`. OSError: it is gone, or somebody
    else's."""
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        try:
            _call("setns", theirs, NEW_NET)
        except PermissionError:
            users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
            try:
                _call("setns", users, NEW_USER)
            finally:
                os.close(users)
            _call("setns", theirs, NEW_NET)
    finally:
        os.close(theirs)


def _call(name: str, *arguments: int) -> None:
    # Python has os.unshare and os.setns from 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("16sH14x", interface.encode(), 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _GET_FLAGS, asked))
        fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sH14x", interface.encode(), flags | _UP))


def _give_address(interface: str, host: str) -> None:
    """The public port's address, so that the launcher's own checks find it inside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        packed = struct.pack(
            "16sHH4s8x", interface.encode(), socket.AF_INET, 0, socket.inet_aton(host)
        )
        fcntl.ioctl(sock, _SET_ADDRESS, packed)
