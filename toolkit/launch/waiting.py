"""In which order a worker prefills what waits: `prefill.waiting` of a deployment file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan, WorkerPlan

VARIABLE = "TOOLKIT_WAITING"
"""Tells a worker its order, as `Waiting.text` writes it (`patches.waiting_queue`)."""
PARKED = 64
"""`router.parked_per_prefill` where the shortest goes first: the router sends in order of arrival,
so a prefill worker can only choose among those that it has."""

Age = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Waiting(BaseModel):
    """`fcfs` is SGLang's own order; `sjf`: the shortest uncached prompt first, one that has waited
    `age_s` before all others of its priority, one that has waited `class_age_s` before all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Literal["fcfs", "sjf"]
    age_s: Age = 5.0
    class_age_s: Age | None = None

    @model_validator(mode="after")
    def _ages_are_for_sjf(self) -> Waiting:
        if self.order == "fcfs" and self.model_fields_set - {"order"}:
            raise ValueError("age_s and class_age_s are for order: sjf")
        return self

    @property
    def text(self) -> str:
        """For VARIABLE: `sjf:AGE_S` or `sjf:AGE_S:CLASS_AGE_S`; empty for SGLang's own order."""
        if self.order == "fcfs":
            return ""
        ages = [self.age_s] if self.class_age_s is None else [self.age_s, self.class_age_s]
        return ":".join([self.order, *(f"{age:g}" for age in ages)])

    @classmethod
    def read(cls, text: str) -> Waiting:
        """What `text` wrote. ValueError (pydantic's ValidationError is one): something else."""
        if not text.strip():
            return cls(order="fcfs")
        parts = text.strip().split(":")
        names = ("order", "age_s", "class_age_s")
        if len(parts) > len(names):
            raise ValueError(f"{len(parts)} parts, at most {':'.join(names)}")
        return cls.model_validate(dict(zip(names, parts, strict=False)))


def from_yaml(value: object) -> object:
    """`waiting: sjf` is short for `waiting: {order: sjf}`."""
    return {"order": value} if isinstance(value, str) else value


def waiting(plan: Plan) -> list[Problem]:
    """Flags and limits that do not go with the shortest first."""
    # Replicas and their nodes differ in ports and addresses only.
    first = {worker.role: worker for worker in reversed(plan.workers) if VARIABLE in worker.env}
    problems = []
    for role, worker in first.items():
        key = "worker" if role == "plain" else role
        problems += _flags(key, worker)
    config = (plan.router.config if plan.router else None) or {}
    parked = config.get("parked_per_prefill")
    if "prefill" in first and plan.dispatch == "late" and parked is not None and parked < PARKED:
        what = f"a prefill worker gets {parked} requests at a time, and orders only these: the rest"
        what += " waits in the router, in the order of arrival"
        mend = f"leave it out (then it is {PARKED}), or raise it"
        problems.append(Problem("router.parked_per_prefill", what, mend, fatal=False))
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
