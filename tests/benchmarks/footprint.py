"""Memory, idleness and start-up of 1 prefill + 2 decode + router (launch/cpu-demo.yaml).

Nothing to compare with: the numbers are absolute. `pss_gib` is the proportional set size of every
process of the workers and the router after it has answered a few requests on each worker.
`idle_percent` is 100 minus the share of the machine's cores that these processes use while no
request is there, over a window; what else runs on the machine does not count (it does slow the
start). `startup_s` runs from the start of the first process to a generation through the whole path.
The supervisor lives in this process and is not in the numbers.

keys: pss_gib, idle_percent, startup_s; more: PSS and CPU share per process
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from tests.benchmarks.shared.common import RECIPE, Result, arguments, cpu_seconds, family, pss_gib
from toolkit.bench.build import Source
from toolkit.bench.hosted import hosted
from toolkit.bench.metrics import Slo
from toolkit.bench.runner import Load
from toolkit.bench.session import Settings, measure

SETTLE_S = 5.0


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    window = 10.0 if options.quick else 60.0
    with tempfile.TemporaryDirectory(prefix="footprint-") as folder:
        start = time.perf_counter()
        with hosted(RECIPE, Path(folder)) as deployment:
            result.keys["startup_s"] = time.perf_counter() - start
            warm = Settings(Source(num_requests=16, max_tokens=16), Load(), Slo())
            asyncio.run(measure(deployment.router_url, warm))
            roots = {worker.name: worker.pid for worker in deployment.workers if worker.pid}
            if deployment.router_pid:
                roots["router"] = deployment.router_pid
            members = {name: family([pid]) for name, pid in roots.items()}
            everyone = sorted({pid for group in members.values() for pid in group})
            time.sleep(SETTLE_S)  # the workers notice that nothing is left to do
            before = {name: cpu_seconds(group) for name, group in members.items()}
            begin = time.perf_counter()
            time.sleep(window)
            spent = time.perf_counter() - begin
            used = {name: cpu_seconds(group) - before[name] for name, group in members.items()}
            cores = os.cpu_count() or 1
            result.keys["idle_percent"] = 100 * (1 - sum(used.values()) / (cores * spent))
            result.keys["pss_gib"] = pss_gib(everyone)
            result.keys["pss_gib_each"] = {name: pss_gib(group) for name, group in members.items()}
            result.keys["core_percent_each"] = {
                name: 100 * seconds / spent for name, seconds in used.items()
            }
            result.keys["processes"] = len(everyone)
            result.keys["window_s"] = spent
    result.emit(samples=1)


if __name__ == "__main__":
    main()
