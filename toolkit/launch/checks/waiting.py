"""Flags and limits that do not go with the order in which a worker prefills what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.contract.variables import WAITING_VARIABLE
from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan, WorkerPlan

PARKED = 64
"""`router.parked_per_prefill` where the shortest goes first: the router sends in order of arrival,
so a prefill worker can only choose among those that it has."""


def waiting(plan: Plan) -> list[Problem]:
    """Flags and limits that do not go with the shortest first."""
    # Replicas and their nodes differ in ports and addresses only.
    first = {
        worker.role: worker for worker in reversed(plan.workers) if WAITING_VARIABLE in worker.env
    }
    problems = []
    for role, worker in first.items():
        key = "worker" if role == "plain" else role
        problems += _flags(key, worker)
    config = (plan.router.config if plan.router else None) or {}
    parked = config.get("parked_per_prefill")
    if "prefill" in first and plan.dispatch == "late" and parked is not None and parked < PARKED:
        what = f"a prefill worker gets {parked} requests at a time, and orders only these: the rest"
        what += " waits in the router, in the order of arrival"
        repair = f"leave it out (then it is {PARKED}), or raise it"
        problems.append(Problem("router.parked_per_prefill", what, repair, fatal=False))
    return problems


def _flags(key: str, worker: WorkerPlan) -> list[Problem]:
    flags = dict(zip(worker.argv, (*worker.argv[1:], ""), strict=True))
    problems = []
    policy = flags.get("--schedule-policy", "fcfs")
    if policy != "fcfs":
        what = f"{policy} and {key}.waiting: sjf both order the waiting requests"
        problems.append(Problem(f"{key}.args.schedule-policy", what, "remove one of them"))
    for name in ("--pp-size", "--pipeline-parallel-size"):
        if flags.get(name, "1") not in ("0", "1"):
            what = f"{key}.waiting: sjf is unproven there: stages that differ in order would hang"
            problems.append(
                Problem(f"{key}.args.{name[2:]}", what, f"use tp, or {key}.waiting: fcfs")
            )
    return problems
