"""DeepEP's buffers for one step, against the requests of a rank and what a draft has verified."""

from typing import Any

import pytest

from toolkit.launch.checks.dispatched import VARIABLE, dispatched
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.settings.deployment import Deployment

WIDE = {"tp": 2, "dp": 2, "dp_attention": True, "ep": 2}


def plan(env: dict[str, str] | None = None) -> Plan:
    decode = WIDE | ({"env": env} if env else {})
    described = {"name": "x", "device": "cuda", "prefill": WIDE, "decode": decode}
    return resolve(Deployment.model_validate(described))


def said(env: dict[str, str] | None = None, **flags: Any) -> list[str]:
    """`flags`: SGLang's reading of the decode worker's; both roles have DeepEP."""
    both = {"moe_a2a_backend": "deepep", "dp_size": 2, "deepep_mode": "low_latency"}
    made = plan(env)
    resolved = {worker.name: both | flags for worker in made.workers}
    found = dispatched(made, resolved)
    assert all(problem.fatal for problem in found)
    return [str(problem) for problem in found]


def test_requests_that_fit_are_not_mentioned() -> None:
    assert said(max_running_requests=256) == []
    assert said({VARIABLE: "256"}, max_running_requests=256, speculative_num_draft_tokens=2) == []
    assert said(max_running_requests=None) == [], "SGLang has not said how many"


@pytest.mark.parametrize(
    "flags", [{"moe_a2a_backend": "none"}, {"deepep_mode": "normal"}, {"moe_a2a_backend": None}]
)
def test_other_kernels_have_no_such_bound(flags: dict[str, Any]) -> None:
    assert said(max_running_requests=4096, **flags) == []


def test_more_requests_than_it_takes_are_refused() -> None:
    (problem,) = said(max_running_requests=258)
    assert f"decode.env.{VARIABLE}" in problem and "takes 128 tokens" in problem
    assert "129 requests have 129" in problem and f"set {VARIABLE} to 129" in problem


def test_a_draft_multiplies_them() -> None:
    (problem,) = said(max_running_requests=256, speculative_num_draft_tokens=4)
    assert "128 requests of 4 verified tokens each have 512" in problem
    (problem,) = said(max_running_requests=1024, speculative_num_draft_tokens=4)
    assert "lower max_running to 256 a rank" in problem


def test_the_environment_of_the_launcher_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "512")
    assert said(max_running_requests=1024) == []
    assert len(said({VARIABLE: "64"}, max_running_requests=1024)) == 1
