"""The CPU shims on real workers: whatever the parallelism, the tokens are the plain server's."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker_process import worker
from toolkit.embedded import load_prompts, model_path

pytestmark = pytest.mark.e2e

PROMPTS = [prompt.text for prompt in load_prompts()[::20]][:8]
NEW_TOKENS = 16
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


def generate(url: str, text: str, **extra: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    body = json.dumps({"text": text, "sampling_params": sampling} | extra).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def outputs(url: str) -> list[list[int]]:
    """Greedy token ids of every prompt, four in flight so that batches and ranks mix."""
    with ThreadPoolExecutor(4) as pool:
        return [answer["output_ids"] for answer in pool.map(lambda t: generate(url, t), PROMPTS)]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def plain(logs: Path) -> Iterator[list[list[int]]]:
    with worker("--sleep-on-idle", log=logs / "plain.log") as url:
        found = outputs(url)
    assert len({tuple(ids) for ids in found}) > len(found) // 2, (
        "the model answers everything alike"
    )
    yield found


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
    with worker(*flags, log=logs / "ep.log", **TWO_RANKS) as url:
        assert outputs(url) == plain


def test_dp_attention_with_concurrent_requests(plain: list[list[int]], logs: Path) -> None:
    flags = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--enable-dp-lm-head")
    with worker(*flags, log=logs / "dp.log", **TWO_RANKS) as url:
        assert outputs(url) == plain


def test_routed_experts_and_the_recorder(plain: list[list[int]], logs: Path) -> None:
    config = json.loads((model_path() / "config.json").read_text())
    flags = ("--enable-return-routed-experts", "--expert-distribution-recorder-mode", "stat")
    recorder = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(logs)}
    with worker(*flags, log=logs / "capture.log", **recorder) as url:
        post(url, "/start_expert_distribution_record")
        assert outputs(url) == plain
        answer = generate(url, PROMPTS[0], return_routed_experts=True)
        post(url, "/stop_expert_distribution_record")
        post(url, "/dump_expert_distribution_record")
    assert answer["meta_info"]["routed_experts"]
    [dump] = logs.glob("*.pt")
    import torch

    counts = torch.load(dump, weights_only=False)["logical_count"]
    assert counts.shape[-1] == config["num_experts"]
    assert int(counts.sum()) > 0


def post(url: str, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url + path, b""), timeout=60) as response:
        assert response.status == 200
