"""The launcher with real CPU workers: the shared deployment, its restarts, SGLang's router."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.launch import command, keys, readiness
from toolkit.launch.checks.flags import _ask
from toolkit.launch.ports import FreePorts
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running
from toolkit.launch.state import read_state
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WRONG = "--no-such-flag"


def healthy(url: str, name: str) -> bool:
    status, body = readiness.get(f"{url}/workers")
    rows = json.loads(body)["workers"] if status == 200 else []
    return any(row["name"] == name and row["healthy"] for row in rows)


def until(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    """Ask a server until it says yes (there is no event to wait for outside of it)."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_up_and_described(deployment: Running) -> None:
    state = read_state(deployment.run_dir)
    assert state["phase"] == "ready" and state["router_url"] == deployment.router_url
    roles = sorted(w.role for w in deployment.workers)
    assert roles == ["decode", "decode", "prefill"]
    assert all(w.pid and w.log.stat().st_size for w in deployment.workers)
    assert len(readiness.generate(deployment.plan, 60)) == 2


def test_router_and_workers_know_each_other_by_the_run(deployment: Running) -> None:
    """A worker that named another run, or none, would be kept out (`toolkit.router.identity`)."""
    seen = readiness.ask(f"{deployment.router_url}/workers")
    assert seen.run == read_state(deployment.run_dir)["run_id"]
    assert all(row["healthy"] for row in json.loads(seen.body)["workers"])
    router = deployment.plan.router
    assert router is not None and router.config is not None
    assert [entry["same_run"] for entry in router.config["workers"]] == [True] * 3


def test_a_killed_decode_worker_comes_back_and_serves(deployment: Running) -> None:
    before = deployment.worker("decode-1")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    after = deployment.wait_ready("decode-1", before.restarts + 1)
    assert after.url == before.url and after.pid != before.pid
    until(lambda: healthy(deployment.router_url, "decode-1"))
    # Through the new one itself, with the prefill worker that has lived through it.
    body = {"text": "2 + 2 =", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    for _ in range(4):
        status, answer = readiness.post(f"{deployment.router_url}/generate", body, 60)
        assert status == 200 and json.loads(answer)["meta_info"]["completion_tokens"] == 4


def test_a_killed_scheduler_takes_its_worker_along_and_it_comes_back(deployment: Running) -> None:
    from toolkit.launch import trees

    before = deployment.worker("decode-0")
    assert before.pid is not None
    leader = trees.look(before.pid)
    assert leader is not None
    tree = trees.members({leader.pid: leader.start})
    named = {Path(f"/proc/{p.pid}/cmdline").read_text().split("\0")[0]: p for p in tree}
    trees.send(named["sglang::scheduler"], signal.SIGKILL)
    deployment.wait_ready("decode-0", before.restarts + 1)
    until(lambda: healthy(deployment.router_url, "decode-0"))
    assert len(readiness.generate(deployment.plan, 60)) == 2


def test_a_killed_router_comes_back(deployment: Running) -> None:
    process = deployment.supervisor.fleet.processes["router"]
    restarts, pid = process.restarts, deployment.router_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deployment.wait_ready("router", restarts + 1, timeout=60)
    assert len(readiness.generate(deployment.plan, 60)) == 2


@contextlib.contextmanager
def sglang_router(deployment: Running) -> Iterator[str]:
    recipe = load_deployment(recipes_dir() / "cpu-demo.yaml")
    fields = {"name": "t", "router": {"kind": "sglang", "decode_policy": "round_robin"}}
    ports = FreePorts()
    port = ports.take()
    held = contextlib.ExitStack()
    entries = [
        {
            "role": w.role,
            "url": held.enter_context(with_the_key(w.health_url.removesuffix("/health"))),
            "bootstrap_port": w.bootstrap_port,
        }
        for w in deployment.plan.workers
    ]
    argv = command.sglang_router_command(
        type(recipe).model_validate(fields), port, ports.take(), entries
    )
    env = {**os.environ, **command.python_env()}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is not None or readiness.get(f"{url}/readiness")[0] == 200)
        assert process.poll() is None
        yield url
    finally:
        process.terminate()
        process.wait()
        held.close()


@contextlib.contextmanager
def with_the_key(worker: str) -> Iterator[str]:
    """A proxy to one worker that adds the run's key: SGLang's router has none to send."""

    class KeyAdder(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            asked = urllib.request.Request(
                worker + self.path, body or None, kind | keys.ours(worker), method=self.command
            )
            try:
                with urllib.request.urlopen(asked, timeout=60) as found:
                    status, data = found.status, found.read()
            except urllib.error.HTTPError as error:
                status, data = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyAdder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_sglangs_own_router_over_the_same_workers(deployment: Running) -> None:
    body = {"text": "The sea is", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    status, ours = readiness.post(f"{deployment.router_url}/generate", body, 60)
    assert status == 200
    with sglang_router(deployment) as url:
        status, theirs = readiness.post(f"{url}/generate", body, 60)
    assert status == 200, theirs
    assert json.loads(theirs)["output_ids"] == json.loads(ours)["output_ids"]


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, Any]]:
    """What SGLang says of the flags of every recipe's workers, and of a wrong one of a CPU's."""
    lines: dict[str, list[dict[str, Any]]] = {
        "cpu": [],
        "cuda": [],
    }  # one process judges one device
    for recipe in sorted(recipes_dir().glob("*.yaml")):
        plan = resolve(load_deployment(recipe))
        for worker in plan.workers:
            argv = [plan.model.check_path if a == plan.model.path else a for a in worker.argv]
            if "--disaggregation-ib-device" in argv:  # only checkable where the device is
                at = argv.index("--disaggregation-ib-device")
                del argv[at : at + 2]
            name = f"{recipe.stem}/{worker.name}"
            lines[plan.device].append({"name": name, "argv": argv, "device": plan.device})
    wrong = [*resolve(load_deployment(recipes_dir() / "cpu-demo.yaml")).workers[0].argv, WRONG]
    lines["cpu"].append({"name": WRONG, "argv": wrong, "device": "cpu"})
    answers: dict[str, dict[str, Any]] = {}
    for of_device in lines.values():
        found, complaint = _ask(of_device)
        assert complaint is None
        assert len(found) == len(of_device)
        answers |= found
    return answers


def test_sglang_accepts_every_flag_of_every_recipe(judged: dict[str, dict[str, Any]]) -> None:
    refused = {name: a["error"] for name, a in judged.items() if not a["ok"] and name != WRONG}
    assert refused == {}


def test_sglang_refuses_a_wrong_flag_by_name(judged: dict[str, dict[str, Any]]) -> None:
    assert not judged[WRONG]["ok"] and WRONG in judged[WRONG]["error"]
