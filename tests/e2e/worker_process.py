"""One real SGLang CPU worker of a test's own, on a free port, gone when the test is."""

import atexit
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests import record
from tests.e2e import lending
from tests.ports import free_port
from tests.preloading import Process
from toolkit.contract.headers import REQUEST_ID
from toolkit.contract.variables import DEVICE_VARIABLE, PATCHES_VARIABLE, WORKER_KEY_VARIABLE
from toolkit.embedded import model_path
from toolkit.launch import trees
from toolkit.launch.guard import LauncherGuard
from toolkit.launch.plan import DIST_PORTS
from toolkit.launch.scratch import variables

STARTS = ("patches.worker", "patches.registry", "tests.e2e.template")

STARTUP_DEADLINE_S = 300

CPU_ENVIRONMENT = {
    PATCHES_VARIABLE: "1",
    DEVICE_VARIABLE: "cpu",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SGLANG_HOST_IP": "127.0.0.1",
    # As the launcher has it, so that both kinds of workers are forked from the same process.
    "SGLANG_LOG_REQUEST_HEADERS": REQUEST_ID,
}

TWO_RANKS: dict[str, Any] = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
"""For a worker of two ranks: a core for each."""


def prefill_mode() -> tuple[str, ...]:
    """Flags of a prefill worker that runs a prompt before its decode worker is chosen."""
    return (
        "--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake_tcp",
        "--disaggregation-bootstrap-port", str(free_port()),
        "--optimistic-prefill-attempts", "1000",
    )  # fmt: skip


def start(port: int, *flags: str, log: Path, **environment: str) -> Process:
    """Start a worker with extra SGLang `flags`, as the leader of a process group; does not wait.

    It has no key (`TOOLKIT_WORKER_KEY`) unless `environment` gives it one: a test talks to it.
    """
    arguments = [
        "--model-path", str(model_path()),
        "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "8192",
        "--max-running-requests", "16", "--load-snapshot-publish-interval", "1", *flags,
    ]  # fmt: skip
    if (
        "--enable-dp-attention" in flags and "--dist-init-addr" not in flags
    ):  # else SGLang opens six ports from `port` + 233 on
        arguments += ["--dist-init-addr", f"127.0.0.1:{free_port(DIST_PORTS)}"]
    env = os.environ | {WORKER_KEY_VARIABLE: ""} | CPU_ENVIRONMENT | environment
    env |= variables(_temporary())
    with log.open("wb") as sink:
        process = lending.start("patches.worker", *arguments, env=env, output=sink)
    for pid, began in leaders(process).items():
        _guard().add(pid, began)
    return process


def leaders(process: Process) -> dict[int, int]:
    """As `trees` wants them; not once it was waited for."""
    seen = trees.look(process.pid)
    return {process.pid: seen.start if seen else 0}


def end(process: Process) -> None:
    """Kill all processes of the worker. Nothing is left of it in shared memory."""
    trees.kill_all(leaders(process))
    process.wait()
    _guard().forget(process.pid)


@cache
def _temporary() -> Path:
    """What the launcher's workers have, too: a folder for temporary files, gone at the end."""
    return Path(tempfile.mkdtemp(prefix="toolkit-"))


@cache
def _guard() -> LauncherGuard:
    """Cleans up as behind a launcher, also when the test process is killed."""
    guard = LauncherGuard(f"tests-{os.getpid()}", _temporary())
    atexit.register(guard.close)
    return guard


def start_second_node(port: int, *flags: str, log: Path, **environment: str) -> Process:
    """Start node 1 of a server on 127.0.0.2. `flags` are those of both nodes, `--nnodes 2` and
    `--dist-init-addr` among them; node 0 comes after it.

    Returns when it has seen that node 0's ports are free, which it asks of its own machine: with
    both nodes on one, it would find them taken and give up.
    """
    here = ("--host", "127.0.0.2", "--node-rank", "1")
    environment = environment | {"SGLANG_HOST_IP": "127.0.0.2"}
    process = start(port, *flags, *here, log=log, **environment)
    deadline = time.monotonic() + STARTUP_DEADLINE_S
    while "server_args=" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"node 1 did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
    time.sleep(1.0)
    return process


@contextmanager
def worker(*flags: str, log: Path, **environment: str) -> Iterator[str]:
    """Start a worker with extra SGLang `flags`; yields its URL once it answers."""
    port = free_port()
    with worker_at(port, *flags, log=log, **environment) as url:
        yield url


@contextmanager
def worker_at(port: int, *flags: str, log: Path, **environment: str) -> Iterator[str]:
    """The same on this port."""
    begin = time.monotonic()
    process = start(port, *flags, log=log, **environment)
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/toolkit/events", log)
        record.start(f"worker {' '.join(flags)}", time.monotonic() - begin)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def _wait_until_ready(process: Process, url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                response.readline()
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    tail = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"the worker did not come up (exit {process.poll()}):\n{tail}")
