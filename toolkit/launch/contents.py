"""What the files of a run folder say. No secrets: a key is the name of the variable it is in."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from toolkit.launch import keys
from toolkit.launch.plan import Plan

if TYPE_CHECKING:
    from toolkit.launch.process import Managed
    from toolkit.launch.processes import Processes


def fixed(plan: Plan) -> dict[str, Any]:
    """What the folder holds from the beginning, by name."""
    files: dict[str, Any] = {"plan.json": plan.to_json(), **plan.expert_maps}
    files |= {router.file: router.config for router in plan.routers if router.config is not None}
    return files


def state(plan: Plan, phase: str, fleet: Processes, start_ticks: int) -> dict[str, Any]:
    """state.json now: the launcher, which is this process and began at `start_ticks`, and the
    processes that it runs."""
    rows = [_row(m) for m in fleet.processes.values()]
    orders = {router.name: router.admin_url for router in plan.own_routers}
    return {
        "name": plan.name,
        "phase": phase,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "run_id": fleet.run_id,
        "guard_pid": fleet.guard.pid,
        "router_url": plan.entry_url,
        "router_urls": plan.entry_urls,
        "isolated": plan.isolate,
        **keys.named_keys(plan.router),
        "workers": [row for row in rows if row["role"] != "router"],
        "routers": [
            row | {"admin_url": orders[row["name"]]} for row in rows if row["role"] == "router"
        ],
        "updated": time.time(),
    }


def _row(m: Managed) -> dict[str, Any]:
    return {
        "name": m.name,
        "role": m.role,
        "url": m.url,
        "pid": m.pid,
        "start_ticks": m.start_ticks,
        "status": str(m.status),
        "restarts": m.restarts,
        "note": m.note,
        "log": str(m.log),
    }
