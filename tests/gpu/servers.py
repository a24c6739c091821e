"""One worker by itself: as the launcher would start it, or without our patches."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.gpu.context import Context
from tests.gpu.run import end
from toolkit.contract.variables import PATCHES_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.launch.plan import WorkerPlan
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment

WAIT_LIMIT_S = 300.0
T = TypeVar("T")


def abreast(stack: ExitStack, sides: Mapping[str, AbstractContextManager[T]]) -> dict[str, T]:
    """Enter all at once, since a worker takes a minute or more to start; `stack` leaves them. Each
    takes the KV tokens that it is told to, so that none is in another's way on the same GPU.
    Raises what one of them raised, once all have started or failed."""
    with ThreadPoolExecutor(len(sides)) as pool:
        entering = {name: pool.submit(side.__enter__) for name, side in sides.items()}
    for name, entered in entering.items():
        if entered.exception() is None:
            stack.push(sides[name])
    return {name: entered.result() for name, entered in entering.items()}


@contextmanager
def alone(
    context: Context, described: dict[str, Any], folder: str, name: str = "worker-0"
) -> Iterator[str]:
    """That worker of a deployment as the launcher would start it, without the others and without a
    router; it asks nobody for a key. Its URL."""
    worker = _planned(described, name)
    environment = {**worker.env, WORKER_KEY_VARIABLE: ""}
    with _started(context, folder, "patches.worker", worker, environment) as url:
        yield url


@contextmanager
def plain_server(context: Context, described: dict[str, Any], folder: str) -> Iterator[str]:
    """The one worker of a deployment of mode `plain`, with its own flags, by SGLang itself: on a
    CPU with what it lacks there (`tests.benchmarks.plain_server`), on a GPU with nothing."""
    worker = _planned(described, "worker-0")
    environment = {**worker.env, WORKER_KEY_VARIABLE: ""}
    module = "tests.benchmarks.plain_server"
    if not context.on_cpu:
        module, environment[PATCHES_VARIABLE] = "sglang.launch_server", "0"
    with _started(context, folder, module, worker, environment) as url:
        yield url


def _planned(described: dict[str, Any], name: str) -> WorkerPlan:
    plan = resolve(Deployment.model_validate(described))
    return next(worker for worker in plan.workers if worker.name == name)


@contextmanager
def _started(
    context: Context, folder: str, module: str, worker: WorkerPlan, environment: dict[str, str]
) -> Iterator[str]:
    log = context.folder(folder) / f"{module}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *worker.argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    url = f"http://127.0.0.1:{worker.port}"
    try:
        _wait(process, f"{url}/health", log)
        yield url
    finally:
        end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    told = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"the worker did not come up (exit {process.poll()}):\n{told}")
