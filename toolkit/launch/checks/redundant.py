"""Are redundant experts copies of the experts that need one?"""

from collections.abc import Mapping
from typing import Any

from toolkit.launch.checks.roles import of_roles
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan


def redundant(plan: Plan, resolved: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Notes on roles whose redundant experts help nobody. `resolved` is SGLang's reading of each
    worker's flags."""
    return of_roles(plan, resolved, worker_problems)


def worker_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    """Of one worker by its `patches.check_args` values; `where` is a flag.

    SGLang 0.5.21 fills the slots of redundant experts with experts 0, 1, 2 .. of each layer
    (eplb/expert_location.py, append_trivial_expert_slots) until a placement says better.
    """
    count = resolved.get("ep_num_redundant_experts") or 0
    placed = resolved.get("init_expert_location") or "trivial"
    if not count or resolved.get("enable_eplb") or placed != "trivial":
        return []
    what = f"the {count} redundant experts are copies of experts 0 to {count - 1}, busy or not"
    repair = "set enable-eplb: true, or init-expert-location to a placement, or leave them out"
    return [Problem("ep-num-redundant-experts", what, repair, fatal=False)]
