"""Moves that are wanted and cannot be."""

from collections.abc import Mapping
from typing import Any

from toolkit.contract.direct_moves import obstacles
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan

STATE = "the model keeps a state beside the KV of its tokens"


def moving(plan: Plan, resolved: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Requests that are to go to other decode workers with their KV, and cannot. `resolved` is
    SGLang's reading of each worker's flags."""
    config = plan.router_config
    by, wanted = config.get("moves", "auto"), config.get("rebalance")
    wanted = wanted is not None and wanted.get("on", True)
    worker = next((w for w in plan.workers if w.role == "decode"), None)
    flags = resolved.get(worker.name) if worker else None
    if not flags or by == "replay" or not (wanted or by == "direct"):
        return []
    if plan.model.keeps_state:
        where = "router.rebalance" if wanted else "router.moves"
        return [Problem(where, f"nothing moves: {STATE}", "leave it out", fatal=False)]
    if not (found := obstacles(flags)):
        return []
    why = ", ".join(found)
    if by == "direct":
        repair = "use moves: auto, which sends their tokens in that case, or leave that out"
        return [Problem("router.moves", f"no request can go directly: {why}", repair)]
    what = f"requests that move are computed anew from their tokens, which takes longer: {why}"
    return [Problem("router.moves", what, "say replay, or leave that out", fatal=False)]
