"""The benchmark of patches that can be left out: who plays what, and what its figures say."""

import pytest

from patches.registry import ALL
from tests.benchmarks.ablation import REQUESTS, SIDES, TOKENS, items, lacking, ratios

ROUND = {"ttft": 0.1, "tpot": 0.02, "one": 0.05, "throughput": 100.0}


def test_every_patch_that_can_be_left_out_is_measured_but_one() -> None:
    # Long prompts: tests.benchmarks.early_choice; many streams: tests.benchmarks.step_frames.
    elsewhere = {"early_choice", "step_frames"}
    assert {patch.name for patch in ALL if patch.gain} - SIDES.keys() - elsewhere == {"cpu_idle"}


def test_each_patch_has_a_worker_of_its_side_without_it() -> None:
    assert lacking(["early_send", "cpu_attention", "first_token"]) == {
        "early_send": "prefill-1", "cpu_attention": "decode-1", "first_token": "prefill-2"
    }  # fmt: skip


def test_pairs_play_the_same_lengths_and_no_prompt_twice() -> None:
    one, other, later = items(3, "early_send"), items(3, ""), items(4, "")
    shape = [(len(item.prompt), item.output_tokens) for item in one]
    assert shape == [(len(item.prompt), item.output_tokens) for item in other]
    assert sum(tokens == 1 for _, tokens in shape) * 4 == REQUESTS
    assert {tokens for _, tokens in shape} == {1, TOKENS}
    prompts = {item.prompt[:8] for item in (*one, *other, *later)}
    assert len(prompts) == 3 * REQUESTS


@pytest.mark.parametrize(
    ("with_it", "said"),
    [([0.05, 0.052, 0.051], "less"), ([0.2, 0.21, 0.2], "more"), ([0.05, 0.2, 0.1], "not told")],
)
def test_only_a_clear_difference_is_told(with_it: list[float], said: str) -> None:
    found = ratios([ROUND | {"ttft": value} for value in with_it], [ROUND] * 3)
    assert found["ttft_told"].startswith(said)
    assert found["tpot_told"] == "not told apart"  # all the same: 1 is in the interval
    assert found["ttft_low"] <= found["ttft"] <= found["ttft_high"]
