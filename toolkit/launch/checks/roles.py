"""One worker of each role, judged by what SGLang made of its flags."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan

Judge = Callable[[Mapping[str, Any]], list[Problem]]
"""Problems of one worker by its `patches.check_args` values; `where` is a flag."""


def of_roles(plan: Plan, resolved: Mapping[str, Mapping[str, Any]], judge: Judge) -> list[Problem]:
    """What `judge` says of every role. `resolved` is SGLang's reading of each worker's flags."""
    problems = []
    for role in dict.fromkeys(worker.role for worker in plan.workers):
        # Replicas and their nodes differ in ports and addresses only.
        worker = next(w for w in plan.workers if w.role == role)
        found = judge(resolved.get(worker.name, {}))
        problems += [replace(p, where=f"{worker.section}.args.{p.where}") for p in found]
    return problems
