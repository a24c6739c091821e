"""A plan, launched: what `toolkit plan` promises beside what real CPU workers then do.

As somebody would who has a deployment and wants a better one. launch/cpu-dp.yaml (one prefill
worker, one decode server of two DP ranks) with `round_robin` and `shortest_queue` serves Poisson
arrivals of `--rate` requests a second, and its router records them. A cost model is fitted as in
`validation`, to calibration traffic. `toolkit plan` gets the file, the recording and the costs, and
writes a deployment file. Then both files serve requests that neither has seen, in turns, each time
started anew and with empty caches.

keys, for each of FIGURES (the client's, means over requests; in seconds, tokens a second):
`real_X`, the plan divided by the file it began with, with its 95 % interval over pairs of rounds;
`told_X`, what the plan said of that. `before_X` and `after_X`, the two in the rounds; `recorded_X`,
while it was recorded; `simulated_X`, what the plan said of that, divided by it. `changed`: what
stands otherwise in the plan's file; `kept`: share of FIGURES that change by more than 5 % in the
plan's words or on the workers, and go the same way in both.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.calibrated import Case, calibrate, calibration, client, played, timed
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say, warm_up
from tests.benchmarks.shared.lengths import workload
from tests.dp_recipe import SLOTS, recipe
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, RunOutcome, check, new_session, play
from toolkit.bench.stats import paired_ratio
from toolkit.bench.target import discover
from toolkit.settings.document import normal
from toolkit.settings.yaml_lines import read_document

FIGURES = {
    "ttft": "ttft_mean",
    "ttft_p99": "ttft_p99",
    "tpot": "tpot_mean",
    "e2e": "e2e_mean",
    "throughput": "output_tokens_s",
}
"""Ours, and the plan's name."""
BASELINE = {"prefill_policy": "round_robin", "decode_policy": "shortest_queue"}
MEANS = (800.0, 48.0)
"""Tokens of a prompt and an answer: prefill is busy most of the time, and slows decode."""
CLEAR = 0.05


async def learn(up: Any, recording: Path, options: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Costs from calibration traffic. What is recorded afterwards is the traffic to plan for, and
    how it was served the second."""
    async with new_session(600.0) as session:
        target = await discover(session, up.router_url)
        pool = token_pool(load_tokenizer(target.model_path))
        cal = calibration(pool, options.calibration)
        await warm_up(session, target, cal[1].items, BenchLoad(concurrency=16, hidden=True))
        found = await calibrate(session, target, up, cal)
        before = len(recording.read_text().splitlines())
        items = timed(workload(None, pool, 11, options.requests, MEANS), options.rate, 11)
        urls = [worker.url for worker in up.workers]
        case = Case("recorded", items, None)
        outcome = await played(session, target, urls, case, BASELINE["decode_policy"])
    lines = recording.read_text().splitlines(keepends=True)[before:]
    if len(lines) != options.requests:
        raise BenchError(f"{len(lines)} requests were recorded, {options.requests} were sent")
    recording.write_text("".join(lines))
    return found.cost.model_dump(), figures(outcome)


def planned(file: Path, recording: Path, cost: Path, out: Path) -> dict[str, Any]:
    """What `toolkit plan` says; its file is at `out`."""
    said = out.with_name("said.json")  # plan.json is the launcher's
    argv = ["plan", str(file), "--trace", str(recording), "--cost", str(cost)]
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *argv, "--out", str(out), "--json", str(said)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BenchError(f"toolkit plan ended with {done.returncode}: {done.stderr[-2000:]}")
    say(done.stdout)
    return json.loads(said.read_text())


async def served(up: Any, number: int, options: Any) -> dict[str, float]:
    """Requests of their own, at arrivals of their own: the same for every file."""
    async with new_session(600.0) as session:
        target = await discover(session, up.router_url)
        pool = token_pool(load_tokenizer(target.model_path))
        first = workload(None, pool, 5, 40, MEANS)
        await warm_up(session, target, first, BenchLoad(concurrency=16, hidden=True))
        drawn = workload(None, pool, 100 + number, options.requests, MEANS)
        case = Case("unseen", timed(drawn, options.rate, 20 + number), None)
        outcome = await play(session, target, case.items, case.load)
    check(outcome, options.requests)
    return figures(outcome)


def figures(outcome: RunOutcome) -> dict[str, float]:
    e2e = statistics.fmean(sample.latency for sample in outcome.samples)
    return client(outcome) | {"e2e": e2e}


def changed(before: Any, after: Any, where: str = "") -> dict[str, Any]:
    """Values that differ, by their dotted keys."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {} if before == after else {where: [before, after]}
    found: dict[str, Any] = {}
    for key in sorted(before.keys() | after.keys()):
        at = f"{where}.{key}" if where else key
        found |= changed(before.get(key), after.get(key), at)
    return found


def compared(
    said: dict[str, Any],
    recorded: dict[str, float],
    before: list[dict[str, float]],
    after: list[dict[str, float]],
) -> dict[str, Any]:
    """The keys of the benchmark."""
    keys: dict[str, Any] = {}
    same = []
    for ours, theirs in FIGURES.items():
        real = paired_ratio([each[ours] for each in after], [each[ours] for each in before])
        told = said["gain"][theirs]["ratio"]
        keys |= real.keys(f"real_{ours}") | {f"told_{ours}": told}
        keys[f"before_{ours}"] = statistics.fmean(each[ours] for each in before)
        keys[f"after_{ours}"] = statistics.fmean(each[ours] for each in after)
        keys[f"recorded_{ours}"] = recorded[ours]
        simulated = said["baseline"]["predicted"][theirs][theirs]
        keys[f"simulated_{ours}"] = simulated / recorded[ours]
        if max(abs(told - 1), abs(real.value - 1)) > CLEAR:
            same.append((told - 1) * (real.value - 1) > 0)
    keys["kept"] = statistics.fmean(same) if same else float("nan")
    return keys


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--requests", {"type": int, "default": 240, "help": "a round, and in the recording"}),
        ("--rate", {"type": float, "default": 4.2, "help": "requests a second"}),
        ("--rounds", {"type": int, "default": 3, "help": "pairs"}),
        ("--calibration", {"type": int, "default": 480, "help": "requests"}),
        ("--keep", {"type": Path, "help": "folder for recording, costs and the plan's file"}),
    )
    if options.quick:
        options.requests, options.rounds, options.calibration = 60, 1, 280
    result = Result()
    with tempfile.TemporaryDirectory(prefix="planned-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        file, recording = recipe("attention", folder, SLOTS), folder / "recording.jsonl"
        document, _ = read_document(file)
        document["router"] = {"kind": "toolkit", "dispatch": "late"} | BASELINE
        file.write_text(json.dumps(document))
        first = folder / "recorded.yaml"
        router = document["router"] | {"record": str(recording)}
        first.write_text(json.dumps(document | {"router": router}))
        with hosted(first, folder) as up:
            cost, recorded = asyncio.run(learn(up, recording, options))
        say(f"recorded: {recorded}")
        (folder / "cost.yaml").write_text(json.dumps(cost))
        plan = folder / "plan.yaml"
        said = planned(file, recording, folder / "cost.yaml", plan)
        rounds: dict[Path, list[dict[str, float]]] = {file: [], plan: []}
        for number in range(options.rounds):
            order = (file, plan) if number % 2 == 0 else (plan, file)
            for path in order:
                with hosted(path, folder) as up:
                    rounds[path].append(asyncio.run(served(up, number, options)))
                say(f"round {number + 1}, {path.name}: {rounds[path][-1]}")
        result.keys |= compared(said, recorded, rounds[file], rounds[plan])
        result.keys["changed"] = changed(normal(document), normal(read_document(plan)[0]))
    result.emit(2 * options.rounds * options.requests)


if __name__ == "__main__":
    main()
