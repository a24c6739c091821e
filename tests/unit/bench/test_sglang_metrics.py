"""Our metrics against SGLang's own `calculate_metrics` on the same samples.

SGLang's module needs torch, the CPU shims and a stand-in for `datasets`: it runs in a process of
its own.
"""

import json
import random

import pytest

from tests.sglang_python import run_python
from toolkit.bench.client import Sample
from toolkit.bench.metrics import summarise

SCRIPT = """
import json, sys
from types import ModuleType, SimpleNamespace
# Hugging Face datasets, which SGLang's image benchmark imports, is not in the CPU set.
sys.modules["datasets"] = ModuleType("datasets")
sys.modules["datasets"].load_dataset = None
import patches.worker as worker
worker.prepare_process()
from sglang.benchmark.serving import calculate_metrics
given = json.load(sys.stdin)
rows = [SimpleNamespace(**row) for row in given["samples"]]
requests = [
    SimpleNamespace(prompt_len=r.prompt_len, text_prompt_len=r.prompt_len, vision_prompt_len=0)
    for r in rows
]
tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: [])
metrics, _ = calculate_metrics(requests, rows, given["duration"], tokenizer, "sglang")
print("RESULT" + json.dumps({k: float(v) for k, v in vars(metrics).items()}))
"""
RENAMED = {"total_input": "total_input_tokens", "total_output": "total_output_tokens"}
NOT_OURS = ("retokenized", "total_input_", "max_output", "max_concurrent")


def make_samples() -> list[Sample]:
    source = random.Random(4)
    samples = [Sample(error="lost", latency=9.0)]
    for number in range(60):
        gaps = [source.expovariate(50) for _ in range(source.randrange(0, 30))]
        ttft = source.expovariate(5)
        samples.append(
            Sample(
                success=True,
                start_time=number * 0.1,
                ttft=ttft,
                itl=gaps,
                latency=ttft + sum(gaps) + 0.001,
                prompt_len=source.randrange(1, 500),
                output_len=1 + len(gaps),
            )
        )
    return samples


def test_every_key_that_sglang_has_too_has_its_value() -> None:
    samples = make_samples()
    rows = [{name: getattr(row, name) for name in Sample.__slots__} for row in samples]
    answer = run_python(SCRIPT, given=json.dumps({"samples": rows, "duration": 12.5}))
    assert answer.returncode == 0, answer.stderr[-2000:]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT"))
    theirs = json.loads(line.removeprefix("RESULT"))
    ours = summarise(samples, 12.5)
    compared = {
        RENAMED.get(key, key): value
        for key, value in theirs.items()
        if not any(part in key for part in NOT_OURS)
    }
    assert len(compared) >= 30
    for key, value in compared.items():
        assert ours[key] == pytest.approx(value), key
