"""What the pool gains, what a score gains beyond it, and where: simulated GPU fleets.

One decode server with DP attention; prefill is never short (a worker for each rank, room for all
that waits). Lengths: conversations of `shared.kinds`, scaled to mean prompts of `--prompt`
tokens and answers of `--answer` (`--trace FILE`: of a trace). A step takes `base` + 10 us a request
+ 35 ns a KV token of the heaviest rank (DeepSeek-V3 as BalanceRoute reports it, see `published`; a
smaller base is a faster MoE part, so that attention is more of a step).

Regimes (`REGIMES`):

- `slots 8`, `slots 16`: 8 and 16 ranks whose *slots* are all taken (a batch limit, as CUDA graphs
  have), KV to spare, base 10 ms: attention is more than half of a step.
- `slots 16 slow`: the same with base 57 ms, the published one: attention is a fifth.
- `kv 8`: 8 ranks whose *KV* is full and slots are not, base 57 ms: BalanceRoute's own regime.
- `open 8`: Poisson arrivals at 0.85 of what `slots 8` carries. Hardly anything ever waits.

Arms: ours, as published, each load balancer without the pool and with it.

keys: for each regime `best` of each column (the most tokens/s where the loop is full, else the
least p99 TPOT), `against`: for every arm of ours and each column the ratios ours / best, with 95 %
intervals over seeds; `arms`, means; `verdict`, in words, from these intervals.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.benchmarks.published import COST, LONGEST
from tests.benchmarks.shared.balancers import (
    BALANCERS,
    COLUMNS,
    POOLED,
    Against,
    Rounds,
    all_against,
    best,
    mean,
    show,
)
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.kinds import draw, of_trace, scaled
from tests.benchmarks.shared.simulated import arriving
from tests.benchmarks.shared.verdicts import changed
from toolkit.bench.traces import load
from toolkit.simulate.costs.linear import Decode, Linear
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window

MEASURES = ("toolkit/policies", "toolkit/decide", "toolkit/simulate")

OURS = ("level", "br0", "brh", "level@0", "br0@paper", "brh@paper")
PREFILL_KV = 4_000_000
FIGURES = ("output_tokens_s", "tpot_p99", "kv_spread")
SHOWN = {
    "tokens/s": ("output_tokens_s", 1.0),
    "TPOT p50 ms": ("tpot_p50", 1e3),
    "TPOT p99 ms": ("tpot_p99", 1e3),
    "TTFT p99 s": ("ttft_p99", 1.0),
    "barrier share": ("barrier_share", 1.0),
    "max - min KV": ("kv_spread", 1.0),
}


@dataclass(frozen=True)
class Regime:
    """`extra`: in flight beyond the slots that can be had, as a share of them; `load` None: a
    closed loop; `base`: seconds of a step that do not depend on the batch."""

    ranks: int
    slots: int
    kv_tokens: int
    in_flight: int
    base: float
    load: float | None = None

    def fleet(self, policy: str) -> Fleet:
        return Fleet(
            prefill=PrefillFleet(replicas=self.ranks, chunk=16_384, kv_tokens=PREFILL_KV),
            decode=DecodeFleet(
                dp=self.ranks, dp_attention=True, slots=self.slots, kv_tokens=self.kv_tokens
            ),
            router=RouterFleet(decode_policy=policy, parked_per_prefill=64),
        )

    @property
    def cost(self) -> Linear:
        decode = Decode(base=self.base, per_request=1e-5, per_kv_token=3.5e-8)
        return COST.model_copy(update={"decode": decode})

    @property
    def lead(self) -> tuple[str, bool]:
        """By which figure the best balancer is found, and whether more is better."""
        return ("output_tokens_s", True) if self.load is None else ("tpot_p99", False)


SLOTS_8 = Regime(ranks=8, slots=48, kv_tokens=3_000_000, in_flight=60, base=0.010)
REGIMES = {
    "slots 8": SLOTS_8,
    "slots 16": replace(SLOTS_8, ranks=16),
    "slots 16 slow": replace(SLOTS_8, ranks=16, base=0.0567),
    "kv 8": Regime(ranks=8, slots=128, kv_tokens=757_000, in_flight=100, base=0.0567),
    "open 8": replace(SLOTS_8, load=0.85),
}


def requests(options: Any, count: int, seed: int, told: bool) -> Iterator[Request]:
    """Conversations; `told`: each says how long its answer gets."""
    if options.trace:
        drawn = of_trace(load(options.trace), count, seed)
    else:
        drawn = [one for one in draw(3 * count, seed) if one.user.startswith("conversation")]
    lengths = scaled(drawn[:count], options.prompt, options.answer, LONGEST)
    for number, one in enumerate(lengths):
        yield Request(number, 0.0, one.prompt, one.answer, user=one.user, told=told)


def played(regime: Regime, policy: str, seed: int, options: Any, rate: float) -> dict[str, float]:
    """One policy on one seed's requests."""
    made: Iterator[Request] = requests(
        options, options.requests * regime.ranks, seed, "oracle" in policy
    )
    in_flight: int | None = regime.in_flight * regime.ranks
    window = Window(full=True)
    if regime.load is not None:
        timed = arriving(made, rate, seed)
        last = timed[-1].arrived
        made, in_flight, window = iter(timed), None, Window(since=last / 10, until=last)
    run = Simulation(
        regime.fleet(policy),
        regime.cost,
        made,
        seed=seed,
        in_flight=in_flight,
        window=window,
        sample_s=0.5,
    )
    return run.run().result()


def rate_of(regime: Regime, options: Any) -> float:
    """Requests a second at the regime's load, of what shortest queue carries when it is full."""
    if regime.load is None:
        return 0.0
    full = played(replace(regime, load=None), "shortest_queue", 0, options, 0.0)
    return regime.load * full["requests"] / full["seconds"]


def verdict(name: str, column: str, arm: str, found: Against, lead: str, most: bool) -> str:
    """What an arm does beside the best balancer of a column, in words."""
    ratio = found.ratios[lead]
    said = changed("tokens/s" if most else "p99 TPOT", asdict(ratio))
    return f"{name}: {arm} beside the best {column}, {found.best}: {said}"


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--regimes", {"default": ",".join(REGIMES), "help": "separated by commas"}),
        ("--arms", {"default": ",".join((*OURS, *BALANCERS, *POOLED))}),
        ("--prompt", {"type": float, "default": 8_000.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 350.0, "help": "mean tokens"}),
        ("--requests", {"type": int, "default": 300, "help": "for each rank"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--trace", {"help": "a trace file in place of the conversations"}),
    )
    if options.quick:
        options.requests, options.seeds = 120, 2
        options.regimes = "slots 8,open 8"
        options.arms = "level,br0@paper,shortest_queue,kv_shortest_queue,pooled@kv_shortest_queue"
    result, runs = Result(), 0
    for name in options.regimes.split(","):
        regime = REGIMES[name]
        rate = rate_of(regime, options)
        rounds: Rounds = {
            arm: [played(regime, arm, seed, options, rate) for seed in range(options.seeds)]
            for arm in options.arms.split(",")
        }
        runs += len(rounds) * options.seeds
        lead, most = regime.lead
        found = all_against(rounds, lead, ("kv_spread",), most)
        said = [
            verdict(name, column, arm, one, lead, most)
            for arm, columns in found.items()
            for column, one in columns.items()
        ]
        show(f"simulated, {name}: {regime}", rounds, SHOWN, "kv_spread")
        print("\n".join(said), file=sys.stderr, flush=True)
        result.keys[name] = {
            "best": {column: best(rounds, column, lead, most) for column in COLUMNS},
            "against": {
                arm: {column: one.keys() for column, one in columns.items()}
                for arm, columns in found.items()
            },
            "arms": {arm: {key: mean(rounds, arm, key) for key in FIGURES} for arm in rounds},
            "verdict": said,
            "rate": rate,
        }
    result.emit(runs)


if __name__ == "__main__":
    main()
