"""What ordering a waiting queue costs a scheduler: one round with 1,000 requests, as `sjf` reports.

In a process of its own, on SGLang's SchedulePolicy, Req and radix cache. Every round the counter of
prefilled tokens has moved, so that 128 requests are matched against the cache again; `idle_ms` are
rounds in which nothing was computed, as when KV is full: only the order is made. CPU time.
"""

import json
import os
import random
import subprocess
import sys
import time
from array import array
from types import SimpleNamespace
from typing import Any

from tests.benchmarks.shared.common import percentile
from toolkit.bench.errors import BenchError

WAITING, HEADS = 1000, 12
ENVIRONMENT = {
    "TOOLKIT_PATCHES": "1",
    "TOOLKIT_DEVICE": "cpu",
    "TOOLKIT_WAITING": "sjf:5",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def round_cost(rounds: int) -> dict[str, float]:
    """`round_p50_ms`, `round_p99_ms`, `round_idle_p50_ms`; importing SGLang takes ten seconds."""
    command = [sys.executable, "-m", "tests.benchmarks.sjf_round", str(rounds)]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _queue() -> tuple[Any, list[Any]]:
    """SGLang's policy with a filled cache, and who waits: lognormal lengths, half with a prefix."""
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.sampling.sampling_params import SamplingParams

    rng = random.Random(0)
    pool: Any = SimpleNamespace(device="cpu", available_size=lambda: 10**6)
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=pool,
            page_size=1,
            tree_components=(ComponentType.FULL,),
        )
    )
    heads = [rng.choices(range(8000), k=1000) for _ in range(HEADS)]
    for head in heads:
        key = RadixKey(array("q", head))
        cache.insert(InsertParams(key=key, value=torch.arange(len(head))))
    reqs = []
    for number in range(WAITING):
        head = rng.choice(heads)[: rng.randint(100, 1000)] if number % 2 else []
        own = rng.choices(range(8000), k=min(8000, int(rng.lognormvariate(6, 1))) + 1)
        sampling = SamplingParams(max_new_tokens=16)
        reqs.append(Req(f"{rng.getrandbits(128):032x}", "", array("q", head + own), sampling))
    return SchedulePolicy("fcfs", cache, False, False, False), reqs


def main() -> None:
    """Print the three figures as JSON."""
    from patches.stubs import CPU_STUBS, declare_torchvision_operators

    sys.path.insert(0, str(CPU_STUBS))
    declare_torchvision_operators()
    import patches
    from patches.pd.waiting_order import MATCHES_A_ROUND
    from patches.pd.waiting_queue import WaitingState
    from patches.scheduler_state import current

    patches.register()
    policy, reqs = _queue()
    busy, idle = [], []
    for counter in range(int(sys.argv[1])):
        current().get(WaitingState).clock += 50
        busy.append(_round(policy, reqs, counter))
        for _ in range(WAITING // MATCHES_A_ROUND + 1):
            _round(policy, reqs, counter)  # until all are matched, as they would be in time
        idle.append(_round(policy, reqs, counter))
    print(
        json.dumps(
            {
                "round_p50_ms": percentile(busy, 50),
                "round_p99_ms": percentile(busy, 99),
                "round_idle_p50_ms": percentile(idle, 50),
            }
        )
    )


def _round(policy: Any, reqs: list[Any], counter: int) -> float:
    begin = time.thread_time()
    policy.calc_priority(reqs, None, processed_tokens=counter)
    return (time.thread_time() - begin) * 1e3


if __name__ == "__main__":
    main()
