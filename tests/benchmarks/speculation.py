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

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import ratio
from tests.benchmarks.shared.side_by_side import measure
from toolkit.bench.hosted import hosted
from toolkit.resources import recipes_dir
from toolkit.settings.yaml_lines import read_document

MEASURES = (
    "patches/cpu",
    "patches/cpu_stubs",
    "patches/steps",
    "toolkit/embedded/draft",
)
RECIPE = recipes_dir() / "cpu-speculative.yaml"


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
