"""Is this checkout slower than another one? The same deployment of both, side by side.

    git worktree add --detach /tmp/before COMMIT
    python -m tests.benchmarks.checkouts --other /tmp/before

`--recipe` is launched twice, each time by the `toolkit launch` of its own checkout (with this one's
virtual environment); the one that is not asked sleeps. Rounds of the project's prompts that the
profile was not fitted to, the same for both, in balanced random order, prefix caches emptied before
each, with 1, 4 and 16 requests in flight (`--in-flight`).

keys, by the number in flight N, this checkout / the other with 95 % intervals over paired rounds:
tpot_ratio_N and ttft_ratio_N (medians of requests, client), throughput_ratio_N (output tokens a
second, the loop full); cpu_tpot_ratio_N (CPU time of the decode workers' threads a token) and
step_ratio_N (median step) where both tell their steps alike. `compared` answers, `different` of
them. `other`: its commit.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import ratio
from tests.benchmarks.shared.side_by_side import measure
from toolkit.settings.yaml_lines import read_document

MEASURES = ("toolkit/router", "toolkit/decide", "toolkit/contract", "patches")
HERE = Path(__file__).resolve().parents[2]
READY = re.compile(r"is ready: (?P<url>\S+) .*--run (?P<run>\S+) ends it")
"""What `toolkit launch --detach` says."""
METRICS = {
    "tpot_ratio": "median_tpot_ms",
    "ttft_ratio": "median_ttft_ms",
    "throughput_ratio": "window_throughput",
    "cpu_tpot_ratio": "median_worker_tpot_ms",
    "step_ratio": "median_step_ms",
}


@contextmanager
def launched(checkout: Path, recipe: str, name: str, folder: Path) -> Iterator[str]:
    """Its deployment by its own launcher: the router's URL."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}

    def python(*words: str) -> str:
        # In a folder of neither checkout: a process sees its own folder first.
        done = subprocess.run(
            [sys.executable, *words],
            check=True, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return done.stdout

    seen = python("-c", "import toolkit, patches; print(toolkit.__file__, patches.__file__)")
    assert all(Path(each).parents[1] == checkout for each in seen.split()), seen
    document, _ = read_document(checkout / "launch" / f"{recipe}.yaml")
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({**document, "name": name}))  # JSON is YAML
    said = python("-m", "toolkit", "launch", str(file), "--detach")
    found = READY.search(said)
    assert found is not None, said
    try:
        yield found["url"]
    finally:
        python("-m", "toolkit", "stop", "--run", found["run"])


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--other", {"type": Path, "required": True, "help": "the other checkout"}),
        ("--recipe", {"default": "cpu-demo"}),
        ("--rounds", {"type": int, "default": 8}),
        ("--requests", {"type": int, "default": 12, "help": "of a round; at least 3 x in flight"}),
        ("--tokens", {"type": int, "default": 64, "help": "mean output tokens; half to 1.5 x"}),
        ("--in-flight", {"type": int, "nargs": "+", "default": [1, 4, 16]}),
    )
    if options.quick:
        options.rounds, options.requests, options.in_flight = 2, 4, [1]
    result = Result()
    commit = ["git", "-C", str(options.other), "rev-parse", "--short=8", "HEAD"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkouts-")))
        both = [
            stack.enter_context(launched(checkout, options.recipe, name, folder))
            for checkout, name in ((HERE, "this-one"), (options.other.resolve(), "other-one"))
        ]
        found, answers = asyncio.run(measure(both[0], both[1], options))
    for in_flight, whole in found.items():
        for key, metric in METRICS.items():
            if all(metric in row for rows in whole.rounds for row in rows):
                result.keys |= ratio(whole, 0, metric, 1).keys(f"{key}_{in_flight}")
    told = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    result.keys |= {
        "rounds": options.rounds,
        "compared": answers.compared,
        "different": answers.different,
        "other": told,
    }
    result.emit(2 * answers.compared)


if __name__ == "__main__":
    main()
