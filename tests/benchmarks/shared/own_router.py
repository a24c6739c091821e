"""A router of a benchmark's own before workers that are up: several can stand side by side."""

import json
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from toolkit.bench.errors import BenchError
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch import readiness
from toolkit.launch.keys import headers_at
from toolkit.launch.plan import RUN_DIR, RouterPlan
from toolkit.launch.process import Managed

UP_S = 60.0
END_S = 15.0


@contextmanager
def own_router(
    plan: RouterPlan, folder: Path, changes: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The router of `plan` with `changes` to its router.json, on a port of its own, its files in
    `folder`. Yields its URL and what `GET /workers` said when all workers were healthy; drains and
    ends it afterwards.

    BenchError: it does not come up, with the end of its log.
    """
    assert plan.config is not None, "it is toolkit's own router"
    port = free_port()
    # This router is of no run, so its workers are not of its own.
    workers = [{**worker, "same_run": False} for worker in plan.config["workers"]]
    config = {**plan.config, **changes, "port": port, "admin_port": free_port(), "workers": workers}
    key = headers_at(config["workers"][0]["url"]).get("Authorization", "").removeprefix("Bearer ")
    (folder / plan.file).write_text(json.dumps(config))
    url = f"http://127.0.0.1:{port}"
    process = Managed(
        name=plan.name,
        role="router",
        url=url,
        health_url=f"{url}/readiness",
        command=[part.replace(RUN_DIR, str(folder)) for part in plan.command],
        env={**plan.env, WORKER_KEY_VARIABLE: key},
        log=folder / "router.log",
    )
    with process.log.open("ab") as log:
        process.spawn(uuid.uuid4().hex, log.fileno())
    try:
        yield url, _until_up(process)
    finally:
        _end(process)


def _until_up(process: Managed) -> dict[str, Any]:
    assert process.popen is not None
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and process.popen.poll() is None:
        status, body = readiness.get(f"{process.url}/workers")
        state = json.loads(body) if status == 200 else {"workers": []}
        if state["workers"] and all(worker["healthy"] for worker in state["workers"]):
            return state
        time.sleep(0.1)
    raise BenchError(f"a router did not come up in {UP_S:.0f} s:\n{process.tail()}")


def _end(process: Managed) -> None:
    """Drained if it can be: after a failure requests may be left in it."""
    assert process.popen is not None
    process.popen.terminate()
    try:
        process.popen.wait(END_S)
    except subprocess.TimeoutExpired:
        process.popen.kill()
        process.popen.wait()
