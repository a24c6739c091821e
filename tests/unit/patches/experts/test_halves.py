"""Two-batch overlap keeps the experts of both halves."""

import subprocess
import sys

import pytest

from tests.sglang_python import CPU_ENVIRONMENT
from tests.unit.patches.experts import halves_cases
from toolkit.contract.capturing import worker_problems
from toolkit.setup import layout

pytestmark = pytest.mark.touched("engine")


@pytest.mark.sglang
def test_each_half_has_its_own_rows() -> None:
    """Through SGLang's own executor."""
    done = subprocess.run(
        [sys.executable, "-m", halves_cases.__name__],
        capture_output=True,
        text=True,
        timeout=300,
        env=layout.tool_environment() | CPU_ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["without False", "with True"]


@pytest.mark.parametrize(("backend", "refused"), [("deepep", False), ("none", True)])
def test_it_is_refused_where_a_half_has_the_tokens_of_all_ranks(
    backend: str, refused: bool
) -> None:
    resolved = {
        "enable_return_routed_experts": True,
        "enable_two_batch_overlap": True,
        "moe_a2a_backend": backend,
        "disaggregation_mode": "decode",
        "only_sliding_window": False,
        "moe_runner_backend": "deep_gemm",
    }
    found = [problem.where for problem in worker_problems(resolved)]
    assert found == ["enable-two-batch-overlap"] * refused
