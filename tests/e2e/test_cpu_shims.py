"""The CPU shims on real workers: whatever the parallelism, the tokens are the plain server's."""

import json
import random
from pathlib import Path

import pytest

from tests.e2e.outputs import PROMPTS, generate, outputs, post
from tests.e2e.worker_process import TWO_RANKS, worker
from toolkit.embedded import model_path

pytestmark = [pytest.mark.e2e, pytest.mark.touched("cpu-engine")]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def plain(plain_server: str) -> list[list[int]]:
    found = outputs(plain_server)
    assert len({tuple(ids) for ids in found}) > len(found) // 2, (
        "the model answers everything alike"
    )
    return found


def shuffled_placement(folder: Path) -> Path:
    """Every layer's experts in an order of its own; all of them move."""
    config = json.loads((model_path() / "config.json").read_text())
    experts, layers = config["num_experts"], config["num_hidden_layers"]
    draw = random.Random(7)
    rows = [draw.sample(range(experts), experts) for _ in range(layers)]
    path = folder / "placement.json"
    path.write_text(json.dumps({"physical_to_logical_map": rows}))
    return path


def test_expert_parallel_with_shuffled_experts(plain: list[list[int]], logs: Path) -> None:
    placement = shuffled_placement(logs)
    flags = ("--tp-size", "2", "--ep-size", "2", "--init-expert-location", str(placement))
    with worker(*flags, "--sleep-on-idle", log=logs / "ep.log", **TWO_RANKS) as url:
        assert outputs(url) == plain


def test_dp_attention_with_concurrent_requests(plain: list[list[int]], logs: Path) -> None:
    flags = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--enable-dp-lm-head")
    with worker(*flags, log=logs / "dp.log", **TWO_RANKS) as url:
        assert outputs(url) == plain


def test_routed_experts_and_the_recorder(plain: list[list[int]], logs: Path) -> None:
    config = json.loads((model_path() / "config.json").read_text())
    flags = ("--enable-return-routed-experts", "--expert-distribution-recorder-mode", "stat")
    recorder = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(logs)}
    with worker(*flags, "--sleep-on-idle", log=logs / "capture.log", **recorder) as url:
        post(url, "/start_expert_distribution_record")
        assert outputs(url) == plain
        answer = generate(url, PROMPTS[0], return_routed_experts=True)
        post(url, "/stop_expert_distribution_record")
        post(url, "/dump_expert_distribution_record")
    assert answer["meta_info"]["routed_experts"]
    [dump] = logs.glob("*.pt")
    import torch

    counts = torch.load(dump, weights_only=True)["logical_count"]
    assert counts.shape[-1] == config["num_experts"]
    assert int(counts.sum()) > 0
