"""Two prefill workers that differ in the order of their waiting queue only, one decode worker, and
a router before each pair: what the benchmark `sjf` measures."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.worker_process import free_port
from toolkit.bench.errors import BenchError
from toolkit.launch import readiness
from toolkit.launch.plan import RUN_DIR, RouterPlan
from toolkit.launch.process import Managed
from toolkit.launch.waiting import VARIABLE

PREFILL = {"sjf": "prefill-0", "fcfs": "prefill-1"}
ROUTER_UP_S = 60.0
ROUTER_END_S = 15.0


def recipe(age_s: float, chunk: int) -> dict[str, Any]:
    """The deployment file; a pass of `chunk` tokens is what a short prompt waits for at least."""
    role = {"kv_tokens": 32768, "max_running": 64}
    waiting = {"order": "sjf", "age_s": age_s}
    args = {"chunked-prefill-size": chunk}
    return {
        "name": "sjf",
        "device": "cpu",
        "model": "embedded",
        "prefill": role | {"replicas": 2, "waiting": waiting, "args": args},
        "decode": role,
        "router": {"dispatch": "late", "parked_per_prefill": 256, "silent_s": 5, "hung_s": 20},
    }


@contextmanager
def arms(age_s: float, chunk: int) -> Iterator[dict[str, str]]:
    """Start everything; yields the router's URL of each order.

    BenchError: a router does not come up, or a worker was restarted. LaunchError: no worker does.
    """
    from toolkit.launch.deployment import Deployment
    from toolkit.launch.plan import resolve
    from toolkit.launch.running import running

    plan = resolve(Deployment.model_validate(recipe(age_s, chunk)))
    assert plan.router is not None
    workers = tuple(
        replace(worker, env={k: v for k, v in worker.env.items() if k != VARIABLE})
        if worker.name == PREFILL["fcfs"]
        else worker
        for worker in plan.workers
    )
    # Its own check would refuse late dispatch without a router; the commands have what it needs.
    bare = replace(plan, workers=workers, router=None, dispatch="concurrent")
    with tempfile.TemporaryDirectory(prefix="sjf-") as folder, ExitStack() as stack:
        up = stack.enter_context(running(bare, Path(folder)))
        yield {
            order: stack.enter_context(_router(plan.router, PREFILL[order], Path(folder) / order))
            for order in PREFILL
        }
        restarted = [f"{w.name} ({w.restarts} x)" for w in up.workers if w.restarts]
        if restarted:
            raise BenchError(f"workers died and were restarted: {', '.join(restarted)}")


@contextmanager
def _router(plan: RouterPlan, prefill: str, folder: Path) -> Iterator[str]:
    """A router over this prefill worker and every decode worker, until it is left."""
    assert plan.config is not None
    folder.mkdir()
    port = free_port()
    kept = [w for w in plan.config["workers"] if w["role"] == "decode" or w["name"] == prefill]
    config = {**plan.config, "port": port, "workers": kept}
    (folder / "router.json").write_text(json.dumps(config))
    url = f"http://127.0.0.1:{port}"
    process = Managed(
        name="router",
        role="router",
        url=url,
        health_url=f"{url}/readiness",
        command=[part.replace(RUN_DIR, str(folder)) for part in plan.command],
        env=plan.env,
        log=folder / "router.log",
    )
    process.spawn(uuid.uuid4().hex)
    try:
        _wait(process)
        yield url
    finally:
        _end(process)


def _wait(process: Managed) -> None:
    assert process.popen is not None
    deadline = time.monotonic() + ROUTER_UP_S
    while time.monotonic() < deadline and process.popen.poll() is None:
        status, body = readiness.get(f"{process.url}/workers")
        workers = json.loads(body)["workers"] if status == 200 else []
        if workers and all(worker["healthy"] for worker in workers):
            return
        time.sleep(0.1)
    raise BenchError(f"a router did not come up in {ROUTER_UP_S:.0f} s:\n{process.tail()}")


def _end(process: Managed) -> None:
    """Drained if it can be: after a failure requests may be left in it."""
    assert process.popen is not None
    process.popen.terminate()
    try:
        process.popen.wait(ROUTER_END_S)
    except subprocess.TimeoutExpired:
        process.popen.kill()
        process.popen.wait()
