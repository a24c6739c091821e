"""When requests arrive. All times are seconds after the start of the run, sorted."""

import random
from itertools import pairwise


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """`count` arrivals of a Poisson process of `rate` requests per second, the first at 0.

    As `sglang.benchmark.serving` does: exponential gaps, the first request at once.
    """
    if rate <= 0:
        raise ValueError(f"the rate must be above 0 requests/s, not {rate}")
    source = random.Random(f"arrivals-{seed}")
    times: list[float] = []
    now = 0.0
    for _ in range(count):
        times.append(now)
        now += source.expovariate(rate)
    return times


def from_trace(stamps: list[float], speedup: float) -> list[float]:
    """Trace timestamps (seconds, any origin, sorted), from 0 on and `speedup` times faster."""
    if speedup <= 0:
        raise ValueError(f"the speed-up must be above 0, not {speedup}")
    return [(stamp - stamps[0]) / speedup for stamp in stamps]


def spread_grid(stamps: list[float], seed: int) -> list[float]:
    """Spread arrivals that a trace recorded on a coarse grid uniformly inside their grid step.

    The Mooncake traces stamp requests every 3 s; replayed as they are, they would be bursts that
    never happened. The step is the smallest gap between two distinct stamps; a trace in which
    (nearly) every stamp is distinct is left alone.
    """
    distinct = sorted(set(stamps))
    if len(distinct) < 2 or len(distinct) > len(stamps) / 2:
        return list(stamps)
    step = min(after - before for before, after in pairwise(distinct))
    source = random.Random(f"grid-{seed}")
    return sorted(stamp + source.random() * step for stamp in stamps)
