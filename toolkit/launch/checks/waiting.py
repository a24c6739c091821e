"""Flags and limits that do not go with the order in which a worker prefills what waits."""

from toolkit.contract.variables import WAITING_VARIABLE
from toolkit.launch.errors import Problem
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
    problems = [problem for worker in first.values() for problem in _flags(worker)]
    parked = plan.router_config.get("parked_per_prefill")
    if "prefill" in first and plan.dispatch == "late" and parked is not None and parked < PARKED:
        what = f"a prefill worker gets {parked} requests at a time, and orders only these: the rest"
        what += " waits in the router, in the order of arrival"
        repair = f"leave it out (then it is {PARKED}), or raise it"
        problems.append(Problem("router.parked_per_prefill", what, repair, fatal=False))
    return problems


def _flags(worker: WorkerPlan) -> list[Problem]:
    key, problems = worker.section, []
    policy = worker.flags.get("--schedule-policy", "fcfs")
    if policy != "fcfs":
        what = f"{policy} and {key}.waiting: sjf both order the waiting requests"
        problems.append(Problem(f"{key}.args.schedule-policy", what, "remove one of them"))
    if name := worker.pipelined:
        what = f"{key}.waiting: sjf is unproven there: stages that differ in order would hang"
        problems.append(Problem(f"{key}.args.{name[2:]}", what, f"use tp, or {key}.waiting: fcfs"))
    return problems
