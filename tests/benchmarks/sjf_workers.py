"""Two prefill workers that differ in the order of their waiting queue only, one decode worker, and
a router before each pair: what the benchmark `sjf` measures."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.own_router import own_router
from toolkit.bench.errors import BenchError
from toolkit.contract.variables import WAITING_VARIABLE
from toolkit.launch.plan import RouterPlan

PREFILL = {"sjf": "prefill-0", "fcfs": "prefill-1"}


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
    from toolkit.launch.resolve import resolve
    from toolkit.launch.running import running
    from toolkit.settings.deployment import Deployment

    plan = resolve(Deployment.model_validate(recipe(age_s, chunk)))
    assert plan.router is not None
    workers = tuple(
        replace(worker, env={k: v for k, v in worker.env.items() if k != WAITING_VARIABLE})
        if worker.name == PREFILL["fcfs"]
        else worker
        for worker in plan.workers
    )
    # Its own check would refuse late dispatch without a router; the commands have what it needs.
    bare = replace(plan, workers=workers, routers=(), dispatch="concurrent")
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
    kept = [w for w in plan.config["workers"] if w["role"] == "decode" or w["name"] == prefill]
    with own_router(plan, folder, {"workers": kept}) as (url, _):
        yield url
