"""What each of our additions to ELDR gains or costs: `eldr` with one of them left out at a time.

Simulated as in `eldr_simulated` (its workloads, traffic, step times and how experts are taken from
prompts): 8 prefill workers, 4 and 16 decode workers, centroids of other prompts than those served.
`skewed`: half of the requests are of the first kind of the workload, so that its centroid's worker
is asked for more than it can serve.

Arms: `eldr` (ours); `eldr` without what runs on a worker making it nearer (`residents`), without a
queue that makes it less near (`queues`), without full workers being passed over (`full`);
`eldr@paper`, which has none of them. The baseline is the best of random, round robin, power of two
and shortest queue.

keys: by workload and pool, for each arm `p50` and `p99` (TPOT) and `distinct` (experts of a step)
divided by `eldr@paper`'s, `p50_best` and `p99_best` by the best baseline's; each the mean over
rates, with its 95 % interval over seeds.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.eldr_simulated import (
    BASELINES,
    EMBEDDED_USED,
    FEWER,
    WARM_S,
    WORKLOADS,
    best_of,
    enough,
    ratio,
    runs,
)
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_blend import Blend
from tests.benchmarks.shared.eldr_rows import MOST, of_file, of_profile
from tests.benchmarks.shared.simulated import BASE, QWEN3_30B, told
from toolkit.policies import POLICIES, Known
from toolkit.policies.base import Group
from toolkit.policies.eldr import EldrPolicy
from toolkit.simulate.workloads.traffic import RequestKind, mixed

MEASURES = (
    "toolkit/policies/eldr.py",
    "toolkit/policies/published",
    "toolkit/signatures",
    "toolkit/simulate",
)
PAPER = "eldr@paper"
POOLS = (4, 16)
RATES = {4: (5.0, 15.0, 25.0), 16: (20.0, 60.0, 100.0)}
"""Requests a second: as many for each decode worker."""
SKEWED = 0.5


class WithoutResidents(EldrPolicy):
    """What runs on a worker does not make it nearer."""

    def _beside_others(
        self, groups: Mapping[int, Group], own: dict[int, float], signature: Any
    ) -> dict[int, float]:
        return own


class WithoutQueues(EldrPolicy):
    """A long queue makes nobody less near; a full worker is passed over."""

    def __init__(self, seed: int = 0, tau: float = 0.1, centroids: Any = None) -> None:
        super().__init__(seed, tau, centroids, overload=math.inf)


class WithoutFull(EldrPolicy):
    """A full worker is as near as another."""

    def _crowded(
        self, near: dict[int, float], lengths: Mapping[int, float], full: set[int]
    ) -> dict[int, float]:
        return super()._crowded(near, lengths, set())


LEFT_OUT = {
    "eldr-residents": WithoutResidents,
    "eldr-queues": WithoutQueues,
    "eldr-full": WithoutFull,
}
ARMS = ("eldr", *LEFT_OUT, PAPER)
"""The name of what is left out stands behind the hyphen."""


@contextmanager
def known() -> Iterator[None]:
    """The arms are policies that the simulator can be asked for, meanwhile."""
    POLICIES.update({name: Known(make, ("decode",)) for name, make in LEFT_OUT.items()})
    try:
        yield
    finally:
        for name in LEFT_OUT:
            del POLICIES[name]


def kinds_of(workload: str, skewed: bool) -> tuple[RequestKind, ...]:
    """The requests of a workload; skewed, the first kind has SKEWED of them."""
    shares = dict(WORKLOADS[workload])
    if skewed:
        first, *others = shares
        rest = sum(shares[name] for name in others)
        shares = {name: shares[name] * (1 - SKEWED) / rest for name in others} | {first: SKEWED}
    return mixed(shares, BASE)


def pool(workload: str, skewed: bool, decoders: int, blend: Blend, given: Any) -> dict[str, Any]:
    """The keys of one pool."""
    refused = enough(blend.prompts, decoders)
    if refused:
        return {"refused": refused}
    experts = blend.experts(blend.as_special(FEWER[workload]))
    rates = RATES[decoders][1:2] if given.quick else RATES[decoders]
    seconds = WARM_S + (15.0 if given.quick else 40.0)
    found = runs(
        (*ARMS, *BASELINES), rates, decoders, experts, kinds_of(workload, skewed), given.seeds,
        seconds, QWEN3_30B,
    )  # fmt: skip
    best = best_of(found)
    keys: dict[str, Any] = {"best": best}
    for arm in ARMS:
        keys[arm] = {f"{key}_best": told(ratio(found, key, arm, best)) for key in ("p50", "p99")}
        if arm != PAPER:
            keys[arm] |= {
                key: told(ratio(found, key, arm, PAPER)) for key in ("p50", "p99", "distinct")
            }
    return keys


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 4}),
        ("--prompts", {"help": "JSON lines of text, domain, language, maybe source; gzip or not"}),
        ("--rows", {"type": Path, "help": "file (.npz) that keeps what was captured of them"}),
    )
    if options.quick:
        options.seeds = 2
    result = Result()
    if options.prompts:
        path = Path(options.prompts)
        rows = of_file(path, tuple(WORKLOADS.values()), MOST, options.rows)
    else:
        rows = of_profile()
    played = 0
    with known():
        for workload, kinds in WORKLOADS.items():
            blend = Blend(rows, kinds, MOST, QWEN3_30B.used / EMBEDDED_USED)
            for skewed in (False, True):
                name = f"{workload}, skewed" if skewed else workload
                found = {
                    f"{decoders} workers": pool(workload, skewed, decoders, blend, options)
                    for decoders in POOLS
                }
                print(f"{name}: {found}", file=sys.stderr, flush=True)
                result.keys[name] = found
                played += sum("best" in each for each in found.values())
    rates = 1 if options.quick else 3
    result.emit(played * options.seeds * rates * (len(ARMS) + len(BASELINES)))


if __name__ == "__main__":
    main()
