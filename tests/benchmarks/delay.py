"""What the delay between a decision and the request's first step costs barrier scores.

On real workers a request that is bound to a rank is in its steps only one to two steps later: the
rank takes requests, and finished transfers, once a step. Until then the KV of the one that it
replaces is missing. Here the policies play in a closed loop that has such a delay and nothing else
(`tests.unit.policies.closed_loop`): ranks that decode in step, kept full from a pool.

Lengths as in the benchmark `imbalance`: the synthetic mix, or consecutive requests of `--trace`.

keys: `br0`, `brh`, `level` (s_greedy 0; brh with the predictor *learned*): how many times less mean
max - min KV tokens over ranks than with power of two, at the same delay; the values are lists, one
for each of `delays`, in steps. `power_of_two`: its spread in tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.shared.common import Result, arguments

if TYPE_CHECKING:
    import numpy as np

    from tests.benchmarks.shared.kinds import Lengths
    from toolkit.policies import RequestView
    from toolkit.policies.rounds.assign import Assigner

DELAYS = [0, 1, 2, 3]
OURS = ("br0@0", "brh@learned:0", "level@0")
LONGEST = (2000, 512)


class Consecutive:
    """Requests one after the other, from a place that the generator says."""

    def __init__(self, lengths: Sequence[Lengths]) -> None:
        self.lengths = lengths
        self.at = -1

    def __call__(self, rng: np.random.Generator) -> tuple[RequestView, int]:
        from toolkit.policies import RequestView

        count = len(self.lengths)
        self.at = int(rng.integers(count)) if self.at < 0 else (self.at + 1) % count
        one = self.lengths[self.at]
        return RequestView(prompt_tokens=one.prompt, user=one.user), one.answer


def spread(name: str, options: Any, lengths: Sequence[Lengths], delay: int) -> float:
    """Mean over steps of max - min KV tokens, the mean of all seeds."""
    from tests.unit.policies.closed_loop import ClosedLoop
    from toolkit.policies import make_policy
    from toolkit.policies.rounds.assign import Assigner
    from toolkit.policies.rounds.pooling import PooledPolicy

    found = []
    for seed in range(options.seeds):
        policy = make_policy(name, seed, "decode")
        assigner: Assigner = policy if isinstance(policy, Assigner) else PooledPolicy(policy)
        loop = ClosedLoop(
            assigner, Consecutive(lengths), options.ranks, options.slots, 8 * options.ranks, delay,
            seed, policy.inflight,
        )  # fmt: skip
        loop.run(options.steps, options.steps // 4)
        found += loop.spreads
    return statistics.fmean(found)


def main() -> None:
    """Run the benchmark and print its line."""
    from tests.benchmarks.shared.kinds import draw, of_trace, scaled
    from toolkit.bench.traces import load

    options = arguments(
        __doc__,
        ("--ranks", {"type": int, "default": 2}),
        ("--slots", {"type": int, "default": 32, "help": "of each rank"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--steps", {"type": int, "default": 4000}),
        ("--prompt", {"type": float, "default": 160.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 96.0, "help": "mean tokens"}),
        ("--trace", {"help": "a trace file in place of the synthetic mix"}),
    )
    if options.quick:
        options.seeds, options.steps = 1, 1200
    rows = load(Path(options.trace)) if options.trace else None
    many = 20_000 if rows is None else len(rows)
    drawn = draw(many, 0) if rows is None else of_trace(rows, many, 0)
    lengths = scaled(drawn, options.prompt, options.answer, LONGEST)

    result = Result()
    spreads = {
        name: [spread(name, options, lengths, delay) for delay in DELAYS]
        for name in ("power_of_two", *OURS)
    }
    queue = spreads.pop("power_of_two")
    result.keys = {"delays": DELAYS, "power_of_two": [round(each) for each in queue]}
    for name, ours in spreads.items():
        short = name.partition("@")[0]
        result.keys[short] = [round(q / o, 2) for q, o in zip(queue, ours, strict=True)]
    result.emit(options.seeds * options.steps)


if __name__ == "__main__":
    main()
