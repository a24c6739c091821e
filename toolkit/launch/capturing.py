"""Does SGLang's routed-experts capturer keep the right experts? Asked of a whole plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.contract.capturing import worker_problems
from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan


def capturing(plan: Plan, resolved: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Of every role. `resolved` is SGLang's reading of each worker's flags."""
    problems = []
    for role in dict.fromkeys(worker.role for worker in plan.workers):
        # Replicas and their nodes differ in ports and addresses only.
        worker = next(w for w in plan.workers if w.role == role)
        key = "worker" if role == "plain" else role
        found = worker_problems(resolved.get(worker.name, {}))
        problems += [replace(p, where=f"{key}.args.{p.where}") for p in found]
    return problems
