"""A draft against none, on real CPU workers, one prefill and one decode worker each.

launch/cpu-speculative.yaml with one decode worker, and the same file without its draft, side by
side; the one that is not asked sleeps. Rounds of the project's prompts that the profile was not
fitted to, the same for both, in balanced random order, prefix caches emptied before each, with 1, 4
and 16 requests in flight (`--in-flight`).

A CPU shows what a verification costs there and how often drafts are right, not what a GPU gains.

keys, by the number in flight N: tpot_ratio_N (median of requests, CPU time of the decode worker's
thread), ttft_ratio_N (median, client), throughput_ratio_N (output tokens a second, the loop full),
each with a draft / without and its 95 % interval over `rounds` paired rounds; step_ratio_N (median
step); accepted_N, tokens that a step gives a request. `compared` answers, `different` of them: with
a draft other tokens than without.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import DOMAINS, ratio, say, warm_up, workload
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, RunOutcome, new_session
from toolkit.bench.target import discover
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document

MEASURES = (
    "patches/cpu",
    "patches/cpu_stubs",
    "patches/steps",
    "toolkit/embedded/draft",
)
RECIPE = recipes_dir() / "cpu-speculative.yaml"
DRAFT, NONE = "round_robin", "late:round_robin"
"""Both are the same policy, of which there is nothing to choose; the names tell the two apart."""


def files(folder: Path) -> tuple[Path, Path]:
    """The recipe with one decode worker, with its draft and without."""
    document, _ = read_document(RECIPE)
    document["decode"]["replicas"] = 1
    document["router"]["decode_policy"] = "round_robin"
    ours, plain = folder / "with.yaml", folder / "without.yaml"
    ours.write_text(json.dumps(document))  # JSON is YAML
    del document["speculative"]
    document["name"] += "-not"
    plain.write_text(json.dumps(document))
    return ours, plain


class Answers:
    """Of every round, what each deployment said."""

    def __init__(self) -> None:
        self.compared = self.different = 0
        self._said: dict[int, list[tuple[int, ...]]] = {}

    def keep(self, _arm: int, number: int, outcome: RunOutcome) -> None:
        said = [sample.output_ids for sample in outcome.samples]
        other = self._said.pop(number, None)
        if other is None:
            self._said[number] = said
            return
        self.compared += len(said)
        self.different += sum(a != b for a, b in zip(said, other, strict=True))


async def measure(url: str, plain: str, options: Any) -> tuple[dict[int, Comparison], Answers]:
    """By the number in flight."""
    found, answers = {}, Answers()
    async with new_session(600.0) as session:
        target, without = await discover(session, url), await discover(session, plain)
        for number, in_flight in enumerate(options.in_flight):
            requests = max(options.requests, 3 * in_flight)
            rounds = workload(number, options.rounds, requests, options.tokens, DOMAINS, "all")
            load = BenchLoad(concurrency=in_flight)
            if not number:
                for each in (target, without):
                    await warm_up(session, each, rounds[0], load)
            arms = [Arm.parse(DRAFT), Arm.parse(NONE)]
            found[in_flight] = await compare(
                *(session, target, rounds, load, arms, number),
                report=say,
                keep=answers.keep,
                elsewhere={NONE: without},
            )
    return found, answers


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--rounds", {"type": int, "default": 6}),
        ("--requests", {"type": int, "default": 12, "help": "of a round; at least 3 x in flight"}),
        ("--tokens", {"type": int, "default": 64, "help": "mean output tokens; half to 1.5 x"}),
        ("--in-flight", {"type": int, "nargs": "+", "default": [1, 4, 16]}),
    )
    if options.quick:
        options.rounds, options.requests, options.tokens = 2, 4, 32
    result = Result()
    with tempfile.TemporaryDirectory(prefix="speculation-") as name:
        folder = Path(name)
        ours, plain = files(folder)
        with hosted(ours, folder / "ours") as up, hosted(plain, folder / "plain") as other:
            found, answers = asyncio.run(measure(up.router_url, other.router_url, options))
    for in_flight, whole in found.items():
        for key, metric in (
            ("tpot_ratio", "median_worker_tpot_ms"),
            ("step_ratio", "median_step_ms"),
            ("ttft_ratio", "median_ttft_ms"),
            ("throughput_ratio", "window_throughput"),
        ):
            result.keys |= ratio(whole, 0, metric, 1).keys(f"{key}_{in_flight}")
        result.keys[f"accepted_{in_flight}"] = whole.median(0, "step_tokens")
        result.keys[f"batch_{in_flight}"] = whole.median(0, "mean_batch")
    result.keys |= {
        "rounds": options.rounds,
        "compared": answers.compared,
        "different": answers.different,
    }
    result.emit(2 * answers.compared)


if __name__ == "__main__":
    main()
