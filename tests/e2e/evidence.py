"""What a deployment was doing when a test failed: a rare failure is only seen once.

Short, and what says most first: who runs the tests may keep no more than a page of it.
"""

import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil

from toolkit.launch import keys
from toolkit.launch.running import Running, RunningWorker

LOG_LINES = 8
LINE = 120
ANSWER_S = 5.0
NOISE = ("HTTP/1.1", "Decode batch", "Prefill batch")


def of(up: Running) -> Iterator[tuple[str, str]]:
    """(title, text): the requests in flight, where each worker has them, strangers at its sockets,
    and the ends of all logs."""
    with contextlib.suppress(OSError, ValueError):
        yield "router", _in_flight(_get(up.router_url + "/workers"))
    for worker in up.workers:
        title = f"{worker.name}: {worker.status}, {worker.restarts} restarts"
        yield title, "\n".join([*_queues(worker), *_strangers(worker)])
    for log in sorted(up.run_dir.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        told = [line[:LINE] for line in lines if not any(noise in line for noise in NOISE)]
        yield log.name, "\n".join(told[-LOG_LINES:])


def _get(url: str) -> Any:
    request = urllib.request.Request(url, headers=keys.ours(url))
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


def _in_flight(now: dict[str, Any]) -> str:
    """The router's own counts, then a line for each worker and rank."""
    totals = " ".join(
        f"{name}={now.get(name)}" for name in ("running", "queued", "parked", "pool", "retried")
    )
    rows = (
        f"{row['name']}/{row['dp_rank']} healthy={row['healthy']} inflight={row['inflight']}"
        f" completed={row['completed']} failed={row['failed']}"
        for row in now.get("workers", ())
    )
    return "\n".join([totals, *rows])


def _queues(worker: RunningWorker) -> Iterator[str]:
    """What SGLang says each rank has, queue by queue; zeros left out."""
    try:
        loads = _get(worker.url + "/v1/loads?include=all")["loads"]
    except (OSError, ValueError, KeyError) as error:
        yield f"no loads: {error!r}"
        return
    for load in loads:
        counts = {
            name: value
            for part in (load, load.get("disaggregation") or {}, load.get("queues") or {})
            for name, value in part.items()
            if value and ("reqs" in name or part is load.get("queues"))
        }
        yield f"rank {load['dp_rank']}: {counts}"


def _strangers(worker: RunningWorker) -> Iterator[str]:
    """Where more than one process is connected to a socket on which one of the worker's listens,
    or one several times: each of SGLang's message sockets has a single peer."""
    if worker.pid is None:
        return
    with contextlib.suppress(psutil.Error):  # it may be what the test has killed
        main = psutil.Process(worker.pid)
        family = [main, *main.children(recursive=True)]
        peers = _peers()
        for process in family:
            for each in process.net_connections("tcp"):
                if each.status != psutil.CONN_LISTEN or not each.laddr:
                    continue
                count = Counter(peers.get(each.laddr.port, ()))
                if sum(count.values()) > 1:
                    yield f"{process.pid} {_name(process.pid)} listens on {each.laddr.port}: " + (
                        ", ".join(f"{_name(pid)} ({pid}) x {n}" for pid, n in count.items())
                    )


def _peers() -> dict[int, list[int]]:
    """By remote port: the processes connected to it."""
    found: dict[int, list[int]] = {}
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_ESTABLISHED and each.raddr and each.pid:
            found.setdefault(each.raddr.port, []).append(each.pid)
    return found


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:40]
    return "gone"
