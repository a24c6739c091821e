"""`toolkit bench` on real workers: a result, a comparison, and a run that is an error."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.commands import bench
from tests.unit.html_page import Page
from toolkit.bench.runner import BenchLoad, check, new_session, play
from toolkit.bench.target import discover
from toolkit.bench.workload import Item, Workload
from toolkit.embedded import load_prompts
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.touched("bench-command")]

CLOCK_S = 1e-3
"""How far apart two clocks may be read."""

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
    assert result["versions"]["sglang"] == version("sglang")
    assert "distinct experts" in done.stdout
    assert "TPOT in the worker, own core" in done.stdout
    assert result["remarks"] == []
    assert 4 <= metrics["distinct_experts"] <= 48
    assert 0 < metrics["median_worker_tpot_ms"] < metrics["p99_worker_tpot_wall_ms"]
    workers = result["decode_workers"].values()
    assert sum(w["finished"] for w in workers) == 12
    # The prefill makes the first token of each request; the overlap scheduler may run a request
    # that has ended once more in a batch that goes on.
    assert 12 * 5 <= round(metrics["decode_steps"] * metrics["mean_batch"]) <= 12 * 6


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
        *("--output", str(output), "--page", str(tmp_path / "page.html")),
    )
    assert done.returncode == 0, done.stderr
    assert f"page: {tmp_path / 'page.html'}" in done.stdout
    page = " ".join(Page((tmp_path / "page.html").read_text()).words)
    for words in ("late:random", "concurrent:round_robin", "time to the first token", "3 rounds"):
        assert words in page
    assert "1/3 late:random" in done.stderr, "each play is told as it ends"
    comparison = json.loads(output.read_text())["comparison"]
    assert comparison["arms"] == ["late:random", "concurrent:round_robin"]
    assert [len(rounds) for rounds in comparison["rounds"].values()] == [3, 3]
    ratios = comparison["ratios"]["late:random / concurrent:round_robin"]
    for key in ("mean_ttft_ms", "distinct_experts", "p99_worker_tpot_ms"):
        assert ratios[key]["low"] < ratios[key]["value"] < ratios[key]["high"], key
    assert "distinct experts" in done.stdout
    again = bench(
        *("--url", deployment.router_url, "--num-requests", "2", "--max-tokens", "2"),
        *("--warmup", "0", "--output", str(output)),
    )
    assert again.returncode == 0, again.stderr
    result = json.loads(output.read_text())
    assert (result["dispatch"], result["policies"]["decode"]) == ("late", "shortest_queue")


def test_ones_own_prompts_are_sent_as_they_are(deployment: Running, tmp_path: Path) -> None:
    """Each once, with its own number of tokens; a chat with all its roles."""
    prompts, output = tmp_path / "mine.jsonl", tmp_path / "result.json"
    system = {"role": "system", "content": "Answer in one word."}
    chats = [[system, {"role": "user", "content": f"What is {n} and {n}?"}] for n in range(4)]
    rows: list[dict[str, Any]] = [{"messages": m, "max_tokens": 3 + n} for n, m in enumerate(chats)]
    rows.append(
        {"body": {"messages": chats[0][1:], "max_tokens": 9}, "url": "/v1/chat/completions"}
    )
    rows.append(
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
    )
    prompts.write_text("\n".join(map(json.dumps, rows)))
    done = bench(
        *("--url", deployment.router_url, "--prompts", str(prompts), "--endpoint", "chat"),
        *("--warmup", "0", "--concurrency", "1", "--output", str(output)),
        *("--page", str(tmp_path / "page.html")),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["output_lens"][:5] == [3, 4, 5, 6, 9] and len(result["output_lens"]) == 6
    lengths = result["input_lens"]
    assert min(lengths[:4]) > lengths[4], "the system's message is sent, too"
    assert "mine.jsonl" in (tmp_path / "page.html").read_text()
    assert "Answer in one word" not in (tmp_path / "page.html").read_text() + output.read_text()


def test_a_wrong_line_of_ones_own_prompts_is_named(deployment: Running, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "fine"}\n{"question": "not fine"}\n')
    done = bench("--url", deployment.router_url, "--prompts", str(prompts))
    assert done.returncode == 1
    assert f"{prompts}:2: no prompt in it (it has question)" in done.stderr
    assert '"prompt", "text", "messages"' in done.stderr and "Traceback" not in done.stderr


def test_conversations_are_played_turn_by_turn(deployment: Running, tmp_path: Path) -> None:
    """With the answers that were served, each turn finds the one before it in a prefix cache."""
    prompts, output, page = (tmp_path / name for name in ("share.json", "a.json", "page.html"))
    texts = [prompt.text for prompt in load_prompts()][:4]
    rows = [
        {"conversations": [
            {"from": ("human", "gpt")[n % 2], "value": f"{n} {text}"} for n in range(2 * turns - 1)
        ], "class": "batch" if turns == 1 else "chat", "output_tokens": 5}
        for turns, text in zip((3, 1, 2, 3), texts, strict=True)
    ]  # fmt: skip
    prompts.write_text(json.dumps(rows))
    for turns in ("recorded", "served"):
        done = bench(
            *("--url", deployment.router_url, "--prompts", str(prompts), "--turns", turns),
            *("--endpoint", "chat", "--concurrency", "2", "--warmup", "0", "--output", str(output)),
            *("--think-time", "0.01", "--label", "class", "--page", str(page)),
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(output.read_text())
        assert result["metrics"]["completed"] == 9 and result["output_lens"] == [5] * 9
        assert [turn["completed"] for turn in result["turns"]] == [4, 3, 2]
        given = result["input_lens"]
        assert given[0] < given[1] < given[2] and given[6] < given[7] < given[8]
        assert {name: each["completed"] for name, each in result["groups"]["class"].items()} == {
            "batch": 1,
            "chat": 8,
        }
        assert result["metrics"]["median_later_turn_ttft_ms"] > 0
        assert "TTFT, later turns" in done.stdout
        held = result["decode_loads"]["workers"].values()
        assert max(max(each["requests"]) for each in held) > 0
    words = " ".join(Page(page.read_text()).words)
    assert "Turns of a conversation" in words and texts[0][:30] not in words


@pytest.mark.slow
def test_a_sweep_finds_a_knee_for_each_policy(deployment: Running, tmp_path: Path) -> None:
    """So many at once that the last ones wait for longer than the SLO has room for."""
    output = tmp_path / "result.json"
    done = bench(
        *("--url", deployment.router_url, "--num-requests", "24", "--max-tokens", "4"),
        *("--sweep", "64:512", "--runs", "2", "--slo-ttft-ms", "400", "--knee-within", "1"),
        *("--compare", "round_robin,shortest_queue", "--output", str(output)),
        *("--page", str(tmp_path / "page.html")),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())["sweep"]
    assert [curve["policy"] for curve in found["curves"]] == ["round_robin", "shortest_queue"]
    for curve in found["curves"]:
        assert all(run["completed"] == 24 for rate in curve["rates"] for run in rate["runs"])
        assert all("distinct_experts" in run for rate in curve["rates"] for run in rate["runs"])
        low, high = curve["knee_bracket"]
        assert low < high <= 512, "no such worker keeps to it"
    assert "round_robin / shortest_queue" in done.stdout
    assert "The goodput knee" in (tmp_path / "page.html").read_text()


async def test_the_steps_and_times_of_the_workers_are_those_of_the_requests(
    deployment: Running,
) -> None:
    """One request at a time, then many: every token is one of a step, and CPU time is in time."""
    prompts = [prompt.text for prompt in load_prompts()][:24]
    items = tuple(Item(text, 4 + 3 * (n % 5)) for n, text in enumerate(prompts))
    workload = Workload("inside", items)
    sent = sum(item.output_tokens for item in items)
    async with new_session() as session:
        target = await discover(session, deployment.router_url)
        loads = [BenchLoad(concurrency=concurrency) for concurrency in (1, 12)]
        alone, together = [await play(session, target, workload, load) for load in loads]
    for outcome in (alone, together):
        check(outcome, len(items))
        decode = outcome.decode
        assert decode is not None, outcome.note
        done = np.concatenate([rank.finished for rank in decode.ranks])
        steps = np.concatenate([rank.steps for rank in decode.ranks])
        at = decode.finished_columns.index
        assert sorted(done[:, at("output_tokens")]) == sorted(s.output_len for s in outcome.samples)
        assert sorted(done[:, at("prompt_tokens")]) == sorted(s.prompt_len for s in outcome.samples)
        assert (done[:, at("timed_tokens")] == done[:, at("output_tokens")] - 2).all()
        assert (done[:, at("cpu_seconds")] <= done[:, at("seconds")] + CLOCK_S).all()
        column = decode.columns.index
        assert sent - len(items) <= steps[:, column("requests")].sum() <= sent
        assert (steps[:, column("cpu_seconds")] > 0).all()
        assert (steps[:, column("cpu_seconds")] <= steps[:, column("seconds")] + CLOCK_S).all()
        # A request's time is that of the steps it was in; the client saw no less.
        slowest = max(s.latency for s in outcome.samples)
        assert done[:, at("seconds")].max() <= slowest
        metrics = decode.metrics()
        assert metrics["worker_clock"] == "cpu"
        assert 4 <= metrics["distinct_experts"] <= 4 * metrics["mean_batch"]
    assert alone.decode is not None and together.decode is not None
    assert alone.decode.metrics()["mean_batch"] == 1
    assert alone.decode.metrics()["distinct_experts"] == 4, "top-4 of one token"
    assert together.decode.metrics()["mean_batch"] > 1


def test_a_mix_that_switches_is_told_by_phase(deployment: Running, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    done = bench(
        *("--url", deployment.router_url, "--max-tokens", "6", "--label", "cell"),
        *("--phase", "requests=10 languages=en", "--phase", "requests=6 domains=code,math"),
        *("--output", str(output)),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert [phase["completed"] for phase in result["phases"]] == [10, 6]
    assert all(phase["distinct_experts"] >= 4 for phase in result["phases"])
    assert "domains=code,math" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trace", "{trace}", "--scale-lengths", "0"), "above 0"),
        (("--compare", "random,late:nonsense"), "unknown decode policy"),
        (("--phase", "languages=en"), "requests=200"),
        (("--trace", "{trace}", "--label", "cell"), "no domains"),
        (("--label", "colour"), "domain, language, cell or class"),
        (("--compare", "random"), "two or more"),
        (("--domains", "poetry"), "unknown domain"),
        (("--trace", "/nowhere.csv"), "cannot read the trace"),
        (("--prompts", "/nowhere.txt"), "cannot read the prompts"),
        (("--turns", "served"), "give --prompts FILE"),
        (("--sweep", "1:8"), "--slo-ttft-ms"),
        (("--page", "/dev/null/page.html"), "cannot write the page"),
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
