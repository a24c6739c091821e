"""Memory, idleness and start-up of 1 prefill + 2 decode + router (launch/cpu-demo.yaml).

Nothing to compare with: the numbers are absolute. `pss_gib` is the proportional set size of every
process of the workers and the router after it has answered a few requests on each worker.
`idle_percent` is 100 minus the share of the machine's cores that these processes use while no
request is there, over a window; what else runs on the machine does not count (it does slow the
start). `startup_s` runs from the start of the first process to a generation through the whole path,
`restart_s` from the death of a decode worker until it is ready again, its second of rest included.
`import_s` is what one process takes for the imports that all workers need, alone, before the start.
Beside each lies the CPU time, which says more on a machine that others use too. The supervisor
lives in this process and is not in the numbers.

keys: pss_gib, idle_percent, startup_s, restart_s, import_s; more: CPU time of each, PSS and CPU
share per process
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.shared.common import RECIPE, Result, arguments, cpu_seconds, family, pss_gib
from toolkit.bench.metrics import Slo
from toolkit.bench.runner import BenchLoad
from toolkit.bench.session import Settings, measure
from toolkit.bench.source import Source
from toolkit.launch.command import CPU_ENV
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.settings.load import load_deployment

MEASURES = ("patches", "toolkit/launch", "toolkit/router", "toolkit/decide")

SETTLE_S = 5.0
IMPORT = """
try:
    from patches.cpu import template
except ImportError:
    from patches import template
from patches import worker
worker.__name__ = "__main__"
worker.prepare_process()
template.preload()
"""
"""In a process of its own; works with older commits, too."""


def main() -> None:
    """Run the benchmark and print its line."""
    recipe = {"type": Path, "help": "another deployment file"}
    options = arguments(__doc__, ("--recipe", recipe))
    result = Result()
    window = 10.0 if options.quick else 60.0
    result.keys["import_s"], result.keys["import_cpu_s"] = import_once()
    with tempfile.TemporaryDirectory(prefix="footprint-") as folder:
        plan = resolve(load_deployment(options.recipe or RECIPE))
        start = time.perf_counter()
        with running(plan, Path(folder)) as deployment:
            result.keys["startup_s"] = time.perf_counter() - start
            started = [pid for pid in family([os.getpid()]) if pid != os.getpid()]
            result.keys["startup_cpu_s"] = cpu_seconds(started)
            warm = Settings(Source(num_requests=16, max_tokens=16), BenchLoad(), Slo())
            asyncio.run(measure(deployment.router_url, warm))
            roots = {worker.name: worker.pid for worker in deployment.workers if worker.pid}
            if deployment.router_pid:
                roots["router"] = deployment.router_pid
            if deployment.preloaded_pid:
                roots["preloaded"] = deployment.preloaded_pid
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
            worker = next(w for w in deployment.workers if w.role == "decode")
            assert worker.pid is not None
            begin = time.perf_counter()
            os.kill(worker.pid, signal.SIGKILL)
            back = deployment.wait_ready(worker.name, worker.restarts + 1)
            result.keys["restart_s"] = time.perf_counter() - begin
            assert back.pid is not None
            result.keys["restart_cpu_s"] = cpu_seconds(family([back.pid]))
    result.emit(samples=1)


def import_once() -> tuple[float, float]:
    """Seconds and CPU seconds of one process that imports what a CPU worker does."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = {"TOOLKIT_PATCHES": "1", "TOOLKIT_DEVICE": "cpu", **CPU_ENV}
    subprocess.run(
        [sys.executable, "-c", IMPORT], env=os.environ | cpu, check=True, capture_output=True
    )
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
