"""What every benchmark shares: its arguments, its last line, statistics, processes' memory."""

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parents[3] / "launch" / "cpu-demo.yaml"
RESULTS = Path(__file__).resolve().parents[3] / "results"


def arguments(doc: str | None, *extra: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """Parse `--quick` and the benchmark's own options; the docstring is the help text."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short run: under a minute, without the start of real workers",
    )
    parser.add_argument(
        "--record", action="store_true", help="also append the result to results/NAME.jsonl"
    )
    for name, options in extra:
        parser.add_argument(name, **options)
    given = parser.parse_args()
    Result.recorded = given.record
    return given


class Result:
    """Collects keys; `emit` prints the one JSON object that ends a benchmark's output."""

    recorded = False
    """`--record` was given: `emit` also keeps the line in `results/`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._commit = commit()  # now: a long run may see others made
        self.keys: dict[str, Any] = {}

    def emit(self, samples: int) -> None:
        """Print the keys with `seconds` (whole benchmark) and `samples`. NaN becomes null."""
        # `placement` means the seconds of one placement by it.
        seconds = self.keys.get("seconds", time.perf_counter() - self._start)
        keys = {**self.keys, "seconds": seconds, "samples": samples}
        figures = {name: _rounded(value) for name, value in keys.items()}
        print(json.dumps(figures), flush=True)
        if self.recorded:
            name = Path(sys.argv[0]).stem
            command = shlex.join([f"tests.benchmarks.{name}", *sys.argv[1:]])
            record(name, figures, command, RESULTS, self._commit)


def commit() -> str | None:
    """What is checked out; None outside a repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None


def record(
    name: str, figures: dict[str, Any], command: str, folder: Path, made_of: str | None
) -> None:
    """Append one result to `folder`/NAME.jsonl; the results page is made from these files."""
    line = {
        "benchmark": name,
        "figures": figures,
        "command": command,
        "commit": made_of,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def in_child(*words: object) -> Any:
    """What this benchmark prints as `--child WORDS`, with one BLAS thread; raises when it fails."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    module = f"tests.benchmarks.{Path(sys.argv[0]).stem}"
    done = subprocess.run(
        [sys.executable, "-m", module, "--child", *map(str, words)],
        env={**os.environ, **one},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")  # seconds a token
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks, as numpy does."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median_difference(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Median of the paired differences ours - other, with its 95 % interval.

    The interval is that of the sign test (order statistics of the differences): it asks nothing
    of their distribution, which has long tails on a shared machine.
    """
    differences = sorted(a - b for a, b in zip(ours, other, strict=True))
    count = len(differences)
    # Normal approximation of the binomial ranks; with few pairs it ends at the extremes.
    reach = 0.98 * math.sqrt(count)
    low = differences[max(0, math.floor((count - 1) / 2 - reach))]
    high = differences[min(count - 1, math.ceil((count - 1) / 2 + reach))]
    return statistics.median(differences), low, high


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval (Student's t on the logarithms)."""
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def family(pids: Iterable[int]) -> list[int]:
    """The processes and all their descendants that are alive."""
    import psutil

    found: dict[int, None] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            members = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        found.update(dict.fromkeys(member.pid for member in members))
    return list(found)


def pss_gib(pids: Iterable[int]) -> float:
    """Proportional set size of processes: memory shared by n of them counts 1/n each."""
    total_kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kib += int(line.split()[1])
    return total_kib / 2**20


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that the processes have used, seconds."""
    import psutil

    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


def peak_gib() -> float:
    """The kernel's high-water mark of this process image.

    Not getrusage: its figure survives exec, and would be the parent's where that was larger.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError("no VmHWM in /proc/self/status")
