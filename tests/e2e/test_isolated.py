"""`isolate: true` on real workers: nothing but the public port can be reached, and all goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests import record
from tests.e2e import calls
from tests.e2e.commands import environment, everything, toolkit
from tests.namespaces import needs_namespaces
from tests.unit.launch.stand_ins import wait_gone
from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.state import read_state, rows_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    needs_namespaces,
    pytest.mark.touched("network"),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run folder: prefill, decode and a router, started in the background."""
    file, folder = tmp_path / "alone.yaml", tmp_path / "run"
    file.write_text(json.dumps({"name": "alone", "isolate": True}))
    command = [sys.executable, "-m", "toolkit", "launch", str(file), "--no-check", "--detach"]
    try:
        with record.starting("toolkit launch, isolated: prefill-0, decode-0"):
            started = subprocess.run(
                [*command, "--run-dir", str(folder)],
                cwd=source_root(),
                capture_output=True,
                text=True,
            )
        assert started.returncode == 0, started.stderr
        yield folder
    finally:
        state = read_state(folder)
        here = trees.look(state["pid"])
        if here is not None and here.start == state["start_ticks"]:
            os.kill(state["pid"], signal.SIGKILL)  # the guard ends the rest


def ask(url: str) -> calls.Answer:
    """One request; one that is told to come back later does so."""
    body = calls.greedy(calls.prompt("isolated", 20), 4, stream=True)
    answer: calls.Answer
    (answer,) = calls.run(calls.all_of(url, [body], 1))
    return answer


def namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def listening(pid: int) -> set[int]:
    """Ports that anybody in the namespace of a process listens on."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


def test_only_the_public_port_is_reached_and_a_router_that_dies_loses_nobody(run: Path) -> None:
    state = read_state(run)
    url, router = state["router_url"], state["routers"][0]["pid"]
    first = ask(url)
    assert len(first.ids) == 4 and not first.error
    processes = everything(run)
    spaces = {namespace(each.pid) for each in processes}
    assert len(spaces) == 1 and namespace(os.getpid()) not in spaces
    # What listens inside, seen from outside: nobody is there.
    ports, front = listening(router), urlsplit(url).port
    assert ports >= {urlsplit(each["url"]).port for each in rows_of(state)}
    assert len(ports) > 8  # bootstrap, message sockets, torch's store, Mooncake
    # The same number may be somebody else's out here, so ask whose it is.
    outside = {
        each.laddr.port
        for process in processes
        for each in psutil.Process(process.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert outside == {front}
    # The descriptors of the public port are the router's alone.
    names = "TOOLKIT_FRONT"
    assert names in environment(router)
    assert not any(names in environment(worker["pid"]) for worker in state["workers"])
    shown = toolkit(run, "status", "--json")
    rows = json.loads(shown.stdout)["processes"]
    assert shown.returncode == 0 and [row["healthy"] for row in rows[:2]] == [True, True]
    # Its clients wait at the socket that the launcher holds open.
    os.kill(router, signal.SIGKILL)
    assert ask(url).ids == first.ids
    assert toolkit(run, "stop").returncode == 0
    wait_gone(processes)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", front)):
        pass
