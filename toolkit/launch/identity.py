"""Is it our own process that answers at a URL? A 200 alone says only that somebody does.

Of a process of this launcher (a router of either kind, a server of SGLang's, the small one of a
higher node) the kernel says that it listens. Our router also says of which run it is
(`toolkit.contract.headers.RUN`): whoever gives it orders looks there.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from toolkit.contract.addresses import host_port, place_of
from toolkit.launch import readiness, runs, trees

PASSING = frozenset({408, 425, 429})
"""Of the answers 4xx, those that a process may give while it is starting."""
Listeners = set[int | None]
"""Processes that listen; None is one that cannot be seen, as another user's."""


@dataclass(frozen=True)
class Probe:
    """What a probe found: an answer of our own process, or who is there instead. `why` it is not
    ready; `refuses`: it is up, and answers what no start-up mends."""

    status: int
    stranger: str | None = None
    why: str = ""
    refuses: bool = False


def probe(url: str, timeout: float, run_id: str, leaders: Mapping[int, int]) -> Probe:
    """GET `url`, which a process of the groups led by `leaders` (pid -> start) is to answer.

    Who listens is looked at first: a stranger gets no request, and so no key that goes with one.
    """
    host, port = place_of(url)
    nobody = f"nobody listens at {host_port(host, port)}"
    if not _accepts(host, port, timeout):
        return Probe(0, why=nobody)
    there = listeners(host, port)
    if not there:  # it has ended since
        return Probe(0, why=nobody)
    if not there <= {process.pid for process in trees.members(leaders)}:
        return Probe(0, f"port {port} is answered by {_shown(None, there)}")
    seen = readiness.ask(url, timeout)
    if seen.run not in (None, run_id):
        return Probe(seen.status, f"port {port} is answered by {_shown(seen.run, set())}")
    return Probe(
        seen.status, why=_answered(url, seen), refuses=seen.strange or _refuses(seen.status)
    )


def _answered(url: str, seen: readiness.ProbeAnswer) -> str:
    shown = seen.body[:200].decode("utf-8", "replace").strip()
    return f"{url} answered {seen.status or 'nothing'}: {shown}"


def _refuses(status: int) -> bool:
    """Whether it blames whoever asks, and not its own state."""
    return 400 <= status < 500 and status not in PASSING


def stranger(url: str, run_id: str, timeout: float = 5.0) -> str | None:
    """Who answers at `url` instead of the router of run `run_id`; None: that router does.

    Raises NotReady when nobody answers.
    """
    seen = readiness.ask(f"{url}/health", timeout)
    if seen.status == 0:
        raise readiness.NotReady(f"{url}/health answered nothing")
    if seen.run == run_id:
        return None
    host, port = place_of(url)
    return f"port {port} is answered by {_shown(seen.run, listeners(host, port))}"


def listeners(host: str | None, port: int) -> Listeners:
    """Who listens on `port` at this machine's address `host`, or at all addresses."""
    import psutil

    return {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
        and found.laddr.port == port
        and _reaches(found.laddr.ip, host)
    }


def _accepts(host: str, port: int, timeout: float) -> bool:
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def _reaches(bound: str, host: str | None) -> bool:
    try:
        address, wanted = ip_address(bound), ip_address(host or "")
    except ValueError:
        return True  # a host's name: whoever has the port may be meant
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or wanted in (address, mapped)


def _shown(run_id: str | None, there: Listeners) -> str:
    for pid in sorted(pid for pid in there if pid is not None):
        run_id = run_id or trees.run_of(pid)
    if run_id:
        run = runs.of_id(run_id)
        return f"another run: {run or run_id}"
    pids = ", ".join(f"process {pid}{_name(pid)}" for pid in there if pid is not None)
    return (pids or "a process that cannot be seen from here") + ", which is of no run"


def _name(pid: int) -> str:
    import psutil

    try:
        return f" ({psutil.Process(pid).name()})"
    except psutil.Error:
        return ""
