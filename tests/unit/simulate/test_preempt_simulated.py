"""The benchmark `preempt_simulated`: its step times, its requests, its arms."""

import statistics
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import preempt_simulated as bench
from tests.benchmarks.shared.mixtral import KV_TOKENS, PUBLISHED, ROOFLINE, requests


def step_s(steps: Any, count: int, context: int = 300) -> float:
    return float(steps.decode_s(np.array([count]), np.array([count * context]), 0.0))


def test_steps_are_the_published_ones() -> None:
    assert step_s(PUBLISHED, 1) == pytest.approx(0.3, abs=0.003)
    assert 0.3 <= step_s(PUBLISHED, 32) <= 0.4, "300 to 400 ms (QLLM, II-C)"
    assert step_s(ROOFLINE, 1) < step_s(ROOFLINE, 32) == pytest.approx(0.022, abs=0.002)
    assert 360_000 < KV_TOKENS < 380_000


def test_a_few_tokens_read_weights_and_many_compute() -> None:
    few, more, many = (ROOFLINE.prefill_s([(n, 0)]) for n in (20, 40, 4000))
    assert few == pytest.approx(more, rel=0.01)
    assert many == pytest.approx(4000 * 25.8e9 / 124.8e12, rel=0.05)
    assert ROOFLINE.prefill_s([(512, 3488)]) > ROOFLINE.prefill_s([(512, 0)])


def test_requests_are_those_of_the_seed_at_every_rate() -> None:
    slow, fast = (list(requests(3000, rate, 1)) for rate in (1.0, 4.0))
    assert [(r.prompt, r.output, r.urgent) for r in slow] == [
        (r.prompt, r.output, r.urgent) for r in fast
    ]
    assert slow[-1].arrived == pytest.approx(4 * fast[-1].arrived)
    assert statistics.fmean(r.prompt for r in slow) == pytest.approx(150, rel=0.1)
    assert statistics.fmean(r.output for r in slow) == pytest.approx(310, rel=0.1)
    assert statistics.fmean(r.urgent for r in slow) == pytest.approx(0.2, abs=0.03)
    longer = list(requests(3000, 1.0, 1, prompt=1613.1))
    for long, short in zip(longer, slow, strict=True):
        assert long.prompt == (10 if long.best_effort else 1) * short.prompt


def test_arms_are_in_their_order_and_slices_tell_with_long_prompts() -> None:
    def ttft(arm: str, prompt: float = 161.31) -> float:
        steps, rate = ROOFLINE, 6.0 if prompt < 1000 else 1.2
        return bench.played(arm, steps, rate, 0, 120, prompt)["ls_ttft"]

    assert ttft("static") > 5 * ttft("fcfs") > 5 * ttft("ours")
    long = {arm: ttft(arm, 2500.0) for arm in ("fcfs@256", "priorities@256", "ours@256")}
    assert long["fcfs@256"] > long["priorities@256"] > long["ours@256"]


def test_keys_and_where_the_slo_is_held() -> None:
    runs = {arm: [[dict.fromkeys(bench.FIGURES, 1.0 + n)] for n in range(4)] for arm in bench.NAMES}
    runs["ours@256"] = [[dict.fromkeys(bench.FIGURES, 0.5)] for _ in range(4)]
    found = bench.compared(runs, [1.0, 2.0, 3.0, 4.0])
    assert found["held"]["fcfs"] == 3.0 and found["held"]["ours@256"] == 4.0
    assert found["attained"]["ours@256"] == 0.0 and found["attained"]["fcfs"] == 4.0
    ratios = found["ratios"]["ours@256"]
    assert ratios["ls_ttft"]["fcfs"]["most"] == pytest.approx(8.0)
    assert ratios["be_e2e"]["fcfs"]["most"] == pytest.approx(0.5)
