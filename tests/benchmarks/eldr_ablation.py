"""What each of our additions to ELDR gains or costs: `eldr` with one of them left out at a time.

Simulated as in `eldr_simulated` (its workloads, traffic, step times and how experts are taken from
prompts): 8 prefill workers, 4 and 16 decode workers, centroids of other prompts than those served.
`skewed`: half of the requests are of the first kind of the workload, so that its centroid's worker
is asked for more than it can serve. `drifting`: the traffic goes over from the first half of the
kinds to the other one. `4 workers, 24 slots`: some requests wait for a slot.

Arms: `eldr` (ours); `eldr` without what runs on a worker making it nearer (`residents`), without a
queue that makes it less near (`queues`); `eldr@paper`, which has neither. The baseline is the best
of random, round robin, power of two and shortest queue.

keys: by workload and pool, for each arm `p50` and `p99` (TPOT), `distinct` (experts of a step) and,
where there are few slots, `ttft_p99` (of the decode worker's first token) divided by
`eldr@paper`'s, `p50_best`, `p99_best` .. by the best baseline's; `residents_p50` ..: `eldr` divided
by itself without them, alike `queues_p50` ..; each the mean over rates, with its 95 % interval over
seeds.
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
    SLOTS,
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
POOLS = {"4 workers": (4, SLOTS), "16 workers": (16, SLOTS), "4 workers, 24 slots": (4, 24)}
"""Decode workers, and requests that each runs at a time at most."""
TRAFFIC = ("", "skewed", "drifting")
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
    """A long queue makes nobody less near."""

    def __init__(self, seed: int = 0, tau: float = 0.1, centroids: Any = None) -> None:
        super().__init__(seed, tau, centroids, overload=math.inf)


LEFT_OUT = {
    "eldr-residents": WithoutResidents,
    "eldr-queues": WithoutQueues,
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


def kinds_of(workload: str, traffic: str) -> tuple[RequestKind, ...]:
    """The requests of a workload, in that traffic."""
    shares = dict(WORKLOADS[workload])
    if traffic == "skewed":
        first, *others = shares
        rest = sum(shares[name] for name in others)
        shares = {name: shares[name] * (1 - SKEWED) / rest for name in others} | {first: SKEWED}
    kinds = mixed(shares, BASE)
    if traffic != "drifting":
        return kinds
    early = len(kinds) // 2
    return tuple(
        kind.model_copy(
            update={"late_share": 0.0} if at < early else {"share": 0.0, "late_share": kind.share}
        )
        for at, kind in enumerate(kinds)
    )


def pool(workload: str, traffic: str, name: str, blend: Blend, given: Any) -> dict[str, Any]:
    """The keys of one pool."""
    decoders, slots = POOLS[name]
    refused = enough(blend.prompts, decoders)
    if refused:
        return {"refused": refused}
    experts = blend.experts(blend.as_special(FEWER[workload]))
    rates = RATES[decoders][1:2] if given.quick else RATES[decoders]
    seconds = WARM_S + (15.0 if given.quick else 40.0)
    found = runs(
        (*ARMS, *BASELINES), rates, decoders, experts, kinds_of(workload, traffic), given.seeds,
        seconds, QWEN3_30B, slots,
    )  # fmt: skip
    best = best_of(found)
    keys: dict[str, Any] = {"best": best}
    figures = ("p50", "p99", *(("ttft_p99",) if slots < SLOTS else ()))
    for arm in ARMS:
        keys[arm] = {f"{key}_best": told(ratio(found, key, arm, best)) for key in figures}
        if arm != PAPER:
            keys[arm] |= {
                key: told(ratio(found, key, arm, PAPER)) for key in (*figures, "distinct")
            }
    for arm in LEFT_OUT:
        what = arm.partition("-")[2]
        keys |= {f"{what}_{key}": told(ratio(found, key, "eldr", arm)) for key in figures}
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
            for traffic in TRAFFIC:
                name = f"{workload}, {traffic}" if traffic else workload
                found = {name: pool(workload, traffic, name, blend, options) for name in POOLS}
                print(f"{name}: {found}", file=sys.stderr, flush=True)
                result.keys[name] = found
                played += sum("best" in each for each in found.values())
    rates = 1 if options.quick else 3
    result.emit(played * options.seeds * rates * (len(ARMS) + len(BASELINES)))


if __name__ == "__main__":
    main()
