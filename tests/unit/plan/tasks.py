"""Small deployments and traffic for the planner's tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.simulate.fleets import requests
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.objective import PlanSlo
from toolkit.plan.planner import Task
from toolkit.plan.trials import Trials
from toolkit.settings.document import normal
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost

COST = Linear(
    decode=Decode(base=0.01, per_request=1e-4, per_kv_token=1e-6),
    prefill=Prefill(base=0.01, per_token=1e-4),
    transfer=TransferCost(base=0.002, per_token=1e-6),
)
"""Prefill is what is short: 400 tokens take 50 ms."""
COSTS = """decode: {base: 0.01, per_request: 1.0e-4, per_kv_token: 1.0e-6}
prefill: {base: 0.01, per_token: 1.0e-4}
transfer: {base: 0.002, per_token: 1.0e-6}
"""


def document(**changes: Any) -> dict[str, Any]:
    """One prefill and three decode workers."""
    return normal(
        {
            "name": "four",
            "prefill": {"replicas": 1},
            "decode": {"replicas": 3, "kv_tokens": 20_000, "max_running": 16},
            "router": {"prefill_policy": "round_robin", "decode_policy": "level"},
        }
        | changes
    )


def candidate(**changes: Any) -> Candidate:
    return Candidate.of(document(**changes), Given())


def trials(
    count: int = 150,
    rate: float = 20.0,
    slo: PlanSlo | None = None,
    budget: int = 500,
    in_flight: int | None = None,
) -> Trials:
    arriving = lambda seed: requests(count, rate, seed)  # noqa: E731
    return Trials(COST, arriving, slo or PlanSlo(), budget, in_flight=in_flight)


def task(count: int = 120, rate: float = 28.0, **changes: Any) -> Task:
    """Two seeds, 60 simulations."""
    made = Task(document(), Given(), COST, lambda seed: requests(count, rate, seed), seeds=2)
    return replace(made, budget=60, **changes)


def deployment_file(folder: Path, extra: str = "") -> Path:
    """`document` as a user would write it."""
    path = folder / "four.yaml"
    path.write_text(
        "# mine\nname: four\nprefill: {replicas: 1}\n"
        "decode: {replicas: 3, kv_tokens: 20000, max_running: 16}\n"
        f"router: {{decode_policy: level, max_queue: 77}}\n{extra}"
    )
    (folder / "cost.yaml").write_text(COSTS)
    return path
