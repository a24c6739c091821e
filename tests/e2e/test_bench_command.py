"""`toolkit bench` on real workers: a result, a comparison, and a run that is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

MOONCAKE = "\n".join(
    json.dumps(
        {
            "timestamp": 300 * (n // 4),
            "input_length": 2000 + 300 * n,
            "output_length": 40 + n,
            "hash_ids": [1, 2, 3, 10 + n],
        }
    )
    for n in range(8)
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


@pytest.mark.parametrize("endpoint", ["generate", "chat", "completions"])
def test_prompts_in_a_closed_loop(deployment: Running, tmp_path: Path, endpoint: str) -> None:
    output = tmp_path / "result.json"
    done = bench(
        *("--url", deployment.router_url, "--endpoint", endpoint, "--num-requests", "12"),
        *("--max-tokens", "6", "--slo-ttft-ms", "600000", "--output", str(output)),
    )
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    result = json.loads(output.read_text())
    metrics = result["metrics"]
    assert (metrics["completed"], metrics["failed"]) == (12, 0)
    assert metrics["total_output_tokens"] == 12 * 6
    assert metrics["goodput_fraction"] == 1.0
    assert 0 < metrics["median_ttft_ms"] < metrics["p99_e2e_latency_ms"]
    assert sum(n for name, n in result["requests_per_worker"].items() if "decode" in name) == 12
    assert result["policies"]["decode"]
    assert result["versions"]["sglang"] == "0.5.21"


def test_a_trace_keeps_its_lengths_and_prefixes(deployment: Running, tmp_path: Path) -> None:
    trace, output = tmp_path / "trace.jsonl", tmp_path / "result.json"
    trace.write_text(MOONCAKE)
    done = bench(
        *("--url", deployment.router_url, "--trace", str(trace), "--open-loop", "--seed", "5"),
        *("--scale-lengths", "0.1", "--speedup", "0.5", "--warmup", "0", "--output", str(output)),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["input_lens"] == [round((2000 + 300 * n) * 0.1) for n in range(8)]
    assert result["output_lens"] == [round((40 + n) * 0.1) for n in range(8)]
    assert result["metrics"]["total_cached_tokens"] >= 150, "shared blocks are prefix hits"


def test_a_comparison_prints_ratios_and_restores_the_policies(
    deployment: Running, tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    done = bench(
        *("--url", deployment.router_url, "--num-requests", "12", "--max-tokens", "4"),
        *("--compare", "late:random,concurrent:round_robin", "--rounds", "3"),
        *("--output", str(output)),
    )
    assert done.returncode == 0, done.stderr
    comparison = json.loads(output.read_text())["comparison"]
    assert comparison["arms"] == ["late:random", "concurrent:round_robin"]
    assert [len(rounds) for rounds in comparison["rounds"].values()] == [3, 3]
    ratio = comparison["ratios"]["late:random / concurrent:round_robin"]["mean_ttft_ms"]
    assert ratio["low"] < ratio["value"] < ratio["high"]
    again = bench(
        *("--url", deployment.router_url, "--num-requests", "2", "--max-tokens", "2"),
        *("--warmup", "0", "--output", str(output)),
    )
    assert again.returncode == 0, again.stderr
    result = json.loads(output.read_text())
    assert (result["dispatch"], result["policies"]["decode"]) == ("late", "shortest_queue")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trace", "{trace}", "--scale-lengths", "0"), "above 0"),
        (("--compare", "late:nonsense,random"), "unknown decode policy"),
        (("--compare", "random"), "two or more"),
        (("--domains", "poetry"), "unknown domain"),
        (("--trace", "/nowhere.csv"), "cannot read the trace"),
    ],
)
def test_wrong_options_are_errors_in_plain_words(
    deployment: Running, arguments: tuple[str, ...], says: str
) -> None:
    done = bench("--url", deployment.router_url, "--num-requests", "8", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_at_the_url_is_an_error() -> None:
    done = bench("--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "toolkit launch" in done.stderr
