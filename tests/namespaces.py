"""For tests of `isolate: true`: whether this kernel allows it, and what runs inside."""

import socket
import subprocess
import sys

import pytest

from toolkit.launch.command import source_root


def front_only(host: str, port: int) -> object:
    """As much of a plan as `begin` looks at."""
    from types import SimpleNamespace

    return SimpleNamespace(routers=(SimpleNamespace(host=host, port=port),))


def allowed() -> bool:
    code = "from toolkit.launch import isolation; isolation.enter_new()"
    return subprocess.run([sys.executable, "-c", code], cwd=source_root()).returncode == 0


needs_namespaces = pytest.mark.skipif(not allowed(), reason="the kernel allows no namespace here")


def heard(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        return client.recv(9)
