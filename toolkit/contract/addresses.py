"""Hosts, ports and URLs as text. Nothing else puts them together or takes them apart: an IPv6
address stands in brackets wherever a port follows it, and without them wherever it stands alone."""

from ipaddress import ip_address
from typing import NamedTuple

from yarl import URL

LOOPBACK, LOOPBACK_6 = "127.0.0.1", "::1"
LAST_PORT = 65535


class Place(NamedTuple):
    """Where somebody listens."""

    host: str
    port: int


def is_ipv6(host: str) -> bool:
    """Whether it is an IPv6 address, in brackets or not; a name is none."""
    try:
        return ip_address(_bare(host)).version == 6
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether it stands for all addresses of a machine (`0.0.0.0`, `::`)."""
    try:
        return ip_address(_bare(host)).is_unspecified
    except ValueError:
        return False


def host_port(host: str, port: int | str) -> str:
    """`HOST:PORT`, as in `127.0.0.1:80` and `[::1]:80`."""
    bare = _bare(host)
    return f"[{bare}]:{port}" if is_ipv6(bare) else f"{bare}:{port}"


def http_url(host: str, port: int) -> str:
    """`http://HOST:PORT`."""
    return f"http://{host_port(host, port)}"


def tcp_url(host: str, port: int | str) -> str:
    """A ZeroMQ endpoint."""
    return f"tcp://{host_port(host, port)}"


def loopback_like(host: str) -> str:
    """The loopback address of the family of `host`; IPv4's of a name."""
    return LOOPBACK_6 if is_ipv6(host) else LOOPBACK


def reachable(host: str, own: str) -> str:
    """An address at which this machine itself, whose address is `own`, reaches who listens on
    `host`. Who listens on all addresses of one family is reached by that family only."""
    if not is_unspecified(host):
        return host
    return own if is_ipv6(host) == is_ipv6(own) else loopback_like(host)


def place_of(url: str) -> Place:
    """Who a URL of plain HTTP is asked at. ValueError: it names nobody."""
    try:
        read = URL(url)
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if read.host is None or read.port is None:
        raise ValueError(f"{url!r} names no host")
    return Place(read.host, read.port)


def place_in(told: str) -> Place:
    """What `host_port` has put together. ValueError: that is something else."""
    return place_of(f"http://{told}")


def host_in(told: str) -> str:
    """The host of a `Host` header, with or without a port; as it stands where it is neither."""
    if told.startswith("["):
        return told[1:].partition("]")[0]
    host, colon, _ = told.rpartition(":")
    return host if colon else told


def origin_of(url: str) -> str:
    """The part of a URL that says whom to ask."""
    return http_url(*place_of(url))


def check_host(told: str) -> str:
    """A host by itself, without brackets. ValueError: something else is with it, or it is empty."""
    bare = _bare(told)
    wrong = not bare or bare != bare.strip() or any(c in bare for c in "/?#@[] \t\r\n")
    if wrong or (":" in bare and not is_ipv6(bare)):
        raise ValueError(
            f"{told!r} must be a name or an address alone (10.0.0.1, ::1), without scheme, port or "
            "path"
        )
    return bare


def read_worker_url(told: str) -> tuple[Place, str]:
    """(where, path prefix or "") of a worker's URL: `http://HOST:PORT` or `http://HOST:PORT/PREFIX`.

    ValueError: something in it could not be honoured, and what to write instead.
    """
    shape = "write http://HOST:PORT, or http://HOST:PORT/PREFIX for a worker behind a path"
    who, _, path = told.partition("://")[2].partition("/")
    if "@" in who:  # what is refused goes into logs: a password does not
        raise ValueError(
            "a worker's URL has a user or a password, which no worker asks for: remove it, and "
            "name the workers' key in worker_api_key_env"
        )
    if any(not " " < each < "\x7f" for each in told):
        raise ValueError(f"{told!r} holds characters that no URL has: {shape}")
    if "?" in told or "#" in told:
        raise ValueError(f"{told!r} has a query or a fragment, which would go nowhere: {shape}")
    try:
        url = URL(told)
        host, port = url.host, url.explicit_port
    except ValueError as error:
        raise ValueError(f"{told!r} is no URL ({error}): {shape}") from error
    if url.scheme == "https":
        raise ValueError(
            f"{told!r}: the router asks workers over plain HTTP only: {shape}, and keep the "
            "network between them to yourself"
        )
    if url.scheme != "http" or not host:
        raise ValueError(f"{told!r} must look like http://HOST:PORT: {shape}")
    if port is None or not 1 <= port <= LAST_PORT:
        raise ValueError(f"{told!r} needs a port from 1 to {LAST_PORT}: {shape}")
    prefix = "/" + path.rstrip("/") if path.rstrip("/") else ""
    if prefix != url.raw_path.rstrip("/") or "//" in prefix:
        raise ValueError(f"{told!r}: its path is not in its shortest form: {shape}")
    return Place(check_host(host), port), prefix


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
