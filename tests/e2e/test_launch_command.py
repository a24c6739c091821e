"""`toolkit launch` as a command with a real worker: drain, and death of the launcher."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import psutil
import pytest

from tests import record
from tests.e2e.commands import environment, everything, toolkit
from tests.e2e.left_behind import mapped_by, there
from tests.unit.launch.stand_ins import wait_gone
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.state import read_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("launch-command")]

# One server does both: half the start-up; the router in front drains all the same.
FILE = """
name: one
mode: plain
model: embedded
worker: {kv_tokens: 8192}
timeouts: {start: 300}
"""
Launched = tuple[subprocess.Popen[str], Path]


@pytest.fixture
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launched]:
    """A parameter is what the file says beside."""
    (tmp_path / "one.yaml").write_text(FILE + getattr(request, "param", ""))
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "toolkit", "launch", str(tmp_path / "one.yaml")),
            *("--no-check", "--run-dir", str(run)),
        ],
        cwd=source_root(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said = process.stderr
    assert said is not None
    try:
        lines = []
        with record.starting("toolkit launch: worker-0"):
            for line in said:
                lines.append(line)
                if "] ready:" in line:
                    break
            else:
                pytest.fail("".join(lines))
        yield process, run
    finally:
        process.kill()
        process.wait()
        said.close()


def stream(run: Path, tokens: int) -> HTTPResponse:
    """Start a streaming generation; returns the response after its first chunk."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"text": "Once upon", "sampling_params": sampling, "stream": True})
    url = read_state(run)["router_url"] + "/generate"
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    response: HTTPResponse = urllib.request.urlopen(request, timeout=300)
    assert response.readline().startswith(b"data: ")
    return response


def test_status_then_ctrl_c_drains(launched: Launched) -> None:
    process, run = launched
    shown = toolkit(run, "status", "--json")
    assert shown.returncode == 0, shown.stdout
    rows = json.loads(shown.stdout)["processes"]
    assert [r["status"] for r in rows] == ["ready", "ready"]
    assert rows[0]["memory_mib"] > 500
    assert "worker-0" in toolkit(run, "logs").stdout
    tree = everything(run)
    with stream(run, 200) as response:
        process.send_signal(signal.SIGINT)
        chunks = [line for line in response if line.startswith(b"data: {")]
        last = json.loads(chunks[-1][len(b"data: ") :])
    assert last["meta_info"]["completion_tokens"] == 200
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert process.wait(120) == 0
    wait_gone(tree)
    assert read_state(run)["phase"] == "stopped"
    assert toolkit(run, "status").returncode == 3


def test_detached_with_an_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FILE + "router: {api_key_env: DETACHED_KEY, admin_key_env: DETACHED_ADMIN}\n"
    (tmp_path / "one.yaml").write_text(text)
    run = tmp_path / "run"
    monkeypatch.setenv("DETACHED_KEY", "detached-secret-1234")
    monkeypatch.setenv("DETACHED_ADMIN", "detached-secret-5678")
    command = [sys.executable, "-m", "toolkit", "launch", str(tmp_path / "one.yaml"), "--no-check"]
    try:
        with record.starting("toolkit launch --detach: worker-0"):
            started = subprocess.run(
                [*command, "--detach", "--run-dir", str(run)],
                cwd=source_root(),
                capture_output=True,
                text=True,
                timeout=300,
            )
        assert started.returncode == 0, started.stderr
        assert "one is ready: http://127.0.0.1:" in started.stdout
        assert f"toolkit stop --run {run} ends it" in started.stdout
        tree = everything(run)
        row = json.loads(toolkit(run, "status", "--json").stdout)["processes"][0]
        assert (row["status"], row["healthy"]) == ("ready", True)
        for worker in read_state(run)["workers"]:
            names = environment(worker["pid"])
            assert "DETACHED_KEY" not in names
            assert "DETACHED_ADMIN" not in names
            assert len(names[WORKER_KEY_VARIABLE]) > 40
        monkeypatch.delenv("DETACHED_ADMIN")
        blind = toolkit(run, "status")
        assert "variable DETACHED_ADMIN is empty" in blind.stderr
        assert "detached-secret" not in "".join(p.read_text() for p in run.rglob("*.log"))
    finally:
        stopped = toolkit(run, "stop", "--now")
    assert "no process is left" in stopped.stdout
    wait_gone(tree)


RELAYS = "router: {relays: 2}\n"
"""They have a folder in shared memory."""


@pytest.mark.parametrize("launched", ["", RELAYS], indirect=True, ids=["one process", "relays"])
def test_sigkill_of_the_launcher_under_load_leaves_no_process_and_no_memory(
    launched: Launched, request: pytest.FixtureRequest
) -> None:
    process, run = launched
    tree = everything(run)
    with stream(run, 4000):
        memory = mapped_by(psutil.Process(each.pid) for each in tree)
        routers = [name for name, _ in memory if name.startswith("toolkit-router-")]
        assert len(memory) > len(routers) == request.node.callspec.id.count("relays")
        os.kill(process.pid, signal.SIGKILL)
        wait_gone(tree)
    assert not memory & there()
    assert trees.members({}, read_state(run)["run_id"]) == []
    assert "no process is left" in toolkit(run, "stop").stdout
