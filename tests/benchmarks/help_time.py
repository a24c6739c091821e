"""`toolkit --help`: wall time of the whole process, from exec to exit, median of many.

Nothing to compare with: the number is absolute. One run before the first counted one warms the
page cache and the byte code. `bare_ms` is the same for `python -c pass`: what no command line
tool in Python can go below. The two alternate.

keys: help_ms; more: help_p90_ms, bare_ms
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.shared.common import Result, arguments, percentile


def wall_ms(command: list[str]) -> float:
    """Milliseconds that one run of the command takes; raises when it fails."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1000


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    script = Path(sys.executable).parent / "toolkit"
    toolkit = [str(script)] if script.exists() else [sys.executable, "-m", "toolkit"]
    ours, bare = [*toolkit, "--help"], [sys.executable, "-c", "pass"]
    wall_ms(ours)
    wall_ms(bare)
    rounds = 11 if options.quick else 51
    times = [(wall_ms(ours), wall_ms(bare)) for _ in range(rounds)]
    helps = [time_ms for time_ms, _ in times]
    result.keys["help_ms"] = statistics.median(helps)
    result.keys["help_p90_ms"] = percentile(helps, 90)
    result.keys["bare_ms"] = statistics.median(time_ms for _, time_ms in times)
    result.emit(samples=rounds)


if __name__ == "__main__":
    main()
