"""A network namespace of a deployment's own: who gets in, and who cannot ask for one."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.namespaces import front_only, heard, needs_namespaces
from tests.ports import free_port
from tests.unit.launch.stand_ins import plan, worker
from toolkit.launch import isolation
from toolkit.launch.command import source_root
from toolkit.launch.errors import LaunchError
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment

pytestmark = pytest.mark.touched("launching")

INSIDE = """
import ctypes, encodings.idna, json, os, socket, sys
from pathlib import Path
from tests.namespaces import front_only
from toolkit.launch import isolation
if int(sys.argv[3]):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as of a process that began as nobody
(front,) = isolation.begin(front_only(sys.argv[1], int(sys.argv[2])))
private = socket.create_server(("127.0.0.1", 0))
print(json.dumps([os.getuid(), private.getsockname()[1]]), flush=True)
front.setblocking(True)
for listening in (front, private):
    client, _ = listening.accept()
    client.sendall(b"hello")
    client.close()
print("seen", flush=True)
sys.stdin.read()
"""


Inside = tuple["subprocess.Popen[str]", int, int]


@pytest.fixture(params=[False, True], ids=["as-is", "nobody"])
def inside(request: pytest.FixtureRequest) -> Iterator[Inside]:
    """A process in a namespace of its own, its public port's port and another one of it."""
    if request.param and os.getuid():
        pytest.skip("only root can become nobody")
    front = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", INSIDE, "127.0.0.1", str(front), str(int(request.param))],
        cwd=source_root(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        user, private = json.loads(process.stdout.readline())
        assert user == (65534 if request.param else os.getuid()), "the id is its own inside too"
        yield process, front, private
    finally:
        process.kill()
        process.communicate()


ENTER = """
import sys
from tests.namespaces import heard
from toolkit.launch import isolation
isolation.enter(int(sys.argv[1]))
print(heard(int(sys.argv[2])).decode())
"""


@needs_namespaces
def test_only_the_public_port_is_open_to_those_outside(inside: Inside) -> None:
    process, front, private = inside
    assert heard(front) == b"hello"
    with pytest.raises(OSError):
        heard(private)
    entered = subprocess.run(
        [sys.executable, "-c", ENTER, str(process.pid), str(private)],
        cwd=source_root(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert entered.stdout == "hello\n", entered.stderr
    assert process.stdout is not None and process.stdout.readline() == "seen\n"


def test_a_public_port_that_is_taken_is_said_before_anything_is_moved() -> None:
    before = Path("/proc/self/ns/net").readlink()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            isolation.begin(front_only("127.0.0.1", port))  # type: ignore[arg-type]
    assert Path("/proc/self/ns/net").readlink() == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hosts": {"a": {"address": "10.0.0.1"}}}, "is for a single machine"),
        ({"router": "sglang"}, "only our router takes clients from outside"),
        ({"router": {"host": "::", "open": True}}, "as an IPv4 address"),
    ],
)
def test_what_cannot_be_isolated_is_refused(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(json.dumps({"name": "one", "isolate": True} | fields))
    with pytest.raises(LaunchError, match=said):
        load_deployment(file)


def test_nobody_but_the_command_starts_it(tmp_path: Path) -> None:
    """Threads of a test or a benchmark cannot move into a namespace, and must not do without."""
    deployment = Deployment(name="one", mode="plain", isolate=True)
    with (
        pytest.raises(LaunchError, match="only `toolkit launch` can"),
        running(resolve(deployment), tmp_path),
    ):
        pass
    assert not plan([worker("worker-0", 1, "")]).isolate
