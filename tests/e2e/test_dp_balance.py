"""launch/cpu-dp.yaml on real workers: answers of hidden lengths, and how level the ranks are."""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from patches.cpu.background import NICE
from tests.e2e import calls
from tests.e2e.commands import bench
from toolkit.bench.runner import BenchLoad, RunOutcome, check, new_session, play
from toolkit.bench.target import discover, set_policy
from toolkit.bench.workload import Item, Workload
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch import trees
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ITEMS = tuple(
    Item(tuple(calls.prompt(f"balance-{n}", 10 + 23 * n)), 2 + 7 * n, user=f"u{n % 3}")
    for n in range(10)
)


def played(url: str, policy: str, load: BenchLoad) -> RunOutcome:
    async def run() -> RunOutcome:
        async with new_session(120.0) as session:
            await set_policy(session, url, {"decode": policy})
            return await play(session, await discover(session, url), Workload("w", ITEMS), load)

    return asyncio.run(run())


@pytest.mark.parametrize("policy", ["composed", "brh@learned:0", "br0@0", "round_robin"])
def test_answers_end_where_only_the_client_knew(cpu_dp: Running, policy: str) -> None:
    outcome = played(cpu_dp.router_url, policy, BenchLoad(concurrency=5, hidden=True))
    check(outcome, len(ITEMS))
    made = {sample.prompt_len: sample.output_len for sample in outcome.samples}
    assert made == {len(item.prompt): item.output_tokens for item in ITEMS}
    assert outcome.decode is not None, outcome.note
    assert [rank.name for rank in outcome.decode.ranks] == ["decode-0", "decode-0/1"]
    metrics = outcome.decode.metrics()
    assert metrics["kv_max"] == pytest.approx(metrics["kv_min"] + metrics["kv_spread"])
    assert 0 <= metrics["kv_min"] <= metrics["kv_mean"] <= metrics["kv_max"]
    assert metrics["kv_max"] <= sum(len(i.prompt) + i.output_tokens for i in ITEMS)
    assert 0 <= metrics["barrier_share"] <= 0.5
    assert 0 <= metrics["barrier_share_cpu"] <= 0.5


def test_one_request_alone_leaves_a_rank_empty(cpu_dp: Running) -> None:
    """What is measured, on a case whose answer is known: the other rank holds nothing, and waits
    for half of all time that two ranks spend."""
    one = Workload("one", (Item(tuple(calls.prompt("balance-alone", 300)), 40),))

    async def run() -> RunOutcome:
        async with new_session(120.0) as session:
            return await play(session, await discover(session, cpu_dp.router_url), one, BenchLoad())

    outcome = asyncio.run(run())
    check(outcome, 1)
    assert outcome.decode is not None, outcome.note
    metrics = outcome.decode.metrics()
    assert metrics["kv_min"] == 0
    assert metrics["kv_spread"] == pytest.approx(metrics["kv_max"])
    assert 300 < metrics["kv_max"] <= 342
    assert metrics["barrier_share"] == pytest.approx(0.5, abs=0.01)


def test_toolkit_bench_prints_it(
    cpu_dp: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKER_KEY_VARIABLE, cpu_dp.worker_key)
    output = tmp_path / "result.json"
    done = bench("--url", cpu_dp.router_url, "--num-requests", "8", "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "max - min" in done.stdout
    assert "share at the barrier" in done.stdout
    assert json.loads(output.read_text())["metrics"]["kv_spread"] > 0


def test_only_the_thread_that_computes_steps_back(cpu_dp: Running) -> None:
    """`background` in the recipe: KV is received, and requests are, while a step runs."""
    ranks = {"prefill": Counter[int](), "decode": Counter[int]()}
    for worker in cpu_dp.workers:
        assert worker.pid is not None
        leader = trees.look(worker.pid)
        assert leader is not None
        for process in trees.members({leader.pid: leader.start}):
            name = Path(f"/proc/{process.pid}/cmdline").read_text()
            if not name.startswith("sglang::scheduler"):
                continue
            threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
            back = [t for t in threads if os.getpriority(os.PRIO_PROCESS, t) == NICE]
            assert len(threads) > 5
            assert back == ([process.pid] if worker.role == "decode" else [])
            ranks[worker.role][len(back)] += 1
    assert ranks == {"prefill": {0: 1}, "decode": {1: 2}}
