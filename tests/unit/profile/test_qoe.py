"""CascadeInfer's QoE model: the published fit beside ours, on data that tells its terms apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks import qoe
from tests.kernels import examples
from toolkit.bench.client import Sample
from toolkit.profile import latency
from toolkit.profile.calibrate import LOADS
from toolkit.profile.tap import Heard

D = (0.01, 0.001, 2e-6, 1e-9, 5e-7)


def loads(seed: int, noise: float, alike: bool = False, count: int = 400) -> np.ndarray:
    """[N, 5] of that D. `alike`: answers are as good as equal, so sum L = sum I + 16 n."""
    rng = np.random.default_rng(seed)
    n = rng.choice([1, 2, 4, 8, 16], count)
    prompt = 64.0 * 2 ** rng.uniform(0, 6, count)
    answer = rng.uniform(14, 18, count) if alike else rng.uniform(4, 400, count)
    features = np.column_stack([n, n * prompt, n * prompt**2, n * (prompt + answer)])
    q = np.column_stack([np.ones(count), features]) @ D * rng.normal(1, noise, count)
    return np.column_stack([q, features])


@given(st.integers(0, 1000))
@settings(max_examples=examples(20), deadline=None)
def test_both_find_the_coefficients_of_data_that_spans(seed: int) -> None:
    for found in latency.fit_qoe(loads(seed, 1e-4)):
        assert found is not None
        assert found.coefficients == pytest.approx(D, rel=0.05)
        assert found.held_out_error < 0.01 < found.constant_error


def test_the_published_one_is_plain_least_squares() -> None:
    data = loads(1, 0.2)
    data[::9, 0] *= 4  # stragglers: ours does not follow them, least squares does
    ours, published = latency.fit_qoe(data)
    assert ours is not None and published is not None
    held = np.arange(len(data)) % latency.HELD_OUT_EVERY == latency.HELD_OUT_EVERY - 1
    design = np.column_stack([np.ones(len(data)), data[:, 1:]])
    wanted = np.linalg.lstsq(design[~held], data[~held, 0], rcond=None)[0]
    assert published.coefficients == pytest.approx(tuple(wanted), rel=1e-4)
    error = np.mean(np.abs(design[held] @ wanted / data[held, 0] - 1))
    assert published.held_out_error == pytest.approx(error)
    assert ours.held_out_error < published.held_out_error
    assert ours.samples == published.samples == len(data)


def test_ours_lets_no_term_speed_a_request_up() -> None:
    for seed in range(8):
        ours, _ = latency.fit_qoe(loads(seed, 0.3, alike=True))
        assert ours is not None and min(ours.coefficients) >= 0


def test_a_negative_term_is_said_with_its_cause() -> None:
    steps = np.ones((1, 9))
    columns = ("decode", "seconds", "requests", "kv_tokens", "new_tokens")
    notes = [
        latency.fit_steps(steps, columns, loads(seed, 0.3, alike=True)).note for seed in range(8)
    ]
    assert any("the published QoE fit is negative for" in note for note in notes)
    spanning = latency.fit_steps(steps, columns, loads(0, 0.001))
    assert "negative" not in spanning.note
    assert spanning.qoe is not None and spanning.qoe_published is not None


def test_the_benchmarks_settings_span_lengths_and_batches_within_kv() -> None:
    answers = tuple(int(each) for each in qoe.ANSWERS.split(","))
    found = qoe.settings(qoe.BUCKETS, answers)
    assert {bucket for bucket, _, _ in found} == set(qoe.BUCKETS)
    assert {batch for _, batch, _ in found} == set(qoe.BATCHES)
    assert all(batch * (2 * bucket + answer) <= qoe.KV_TOKENS for bucket, batch, answer in found)
    assert len({answer for _, _, answer in found}) > 1


def test_loads_are_means_over_the_decode_steps_of_a_requests_life() -> None:
    heard = Heard(columns=("decode", "end", *LOADS))
    rows = [[1, 10, 1, 5, 25, 6], [0, 11, 9, 9, 9, 9], [1, 12, 3, 7, 35, 8], [1, 99, 8, 8, 8, 8]]
    heard.steps["w", 0] = [np.array(rows[:2], float), np.array(rows[2:], float)]
    heard.behind["w", 0] = 1.0
    samples = [
        Sample(success=True, start_time=10.5, latency=3.0, prompt_len=5, output_len=2),
        Sample(success=True, start_time=50.0, latency=3.0, prompt_len=5, output_len=2),
    ]
    found = qoe.loads(samples, heard)
    assert found[0].tolist() == [1.5, 2, 6, 30, 7]
    assert np.isnan(found[1]).all()
