"""The simulator against our own real CPU workers, on the same requests and policies.

One prefill worker and one decode server of two DP ranks (launch/cpu-dp.yaml). First a calibration:
traffic of its own under another policy (power of two), in closed loops of 8, 48 and 80 requests and
at 2 requests a second. A cost model is fitted to the wall time of its steps (`validation_fit`), and
what one loses beside a prefill pass, since both share cores. Then each workload is played under
each policy, in the simulator and `--plays` times on the workers, the policies in balanced random
order. Two plays of the same differ by the machine's noise: no simulation can be nearer to both than
half of that.

With `--set plain` it is two workers of one rank each that prefill and decode both (`mode: plain`),
which share two cores all the time, in the calibration too. They are told how long answers get, as
SGLang lets requests in by that.

`--again FILE` takes plays and fit from the last line of a result file, and plays them only in the
simulator: what it says after it was changed.

workloads, none of them the calibration's: `mix`, the synthetic mix of `imbalance` in a closed loop
that keeps ranks full; `chat`, longer answers to shorter prompts, in a smaller closed loop; `open`,
the mix at Poisson arrivals of `--rate` requests a second.

keys: throughput_error, tpot_error, ttft_error: the largest relative error of output tokens a
second, mean TPOT and mean TTFT (the client's) over all pairs, against the mean of a pair's plays;
throughput_noise and so on: the same of a pair's first play against its last; both also as a mean
over the pairs; order_kept: share of the pairs of policies, within a workload and by one of
`ORDERED` (these three, p99 TTFT, mean max - min KV tokens of the ranks), that differ by more than
10 % on the workers and are in the same order in the simulation; order_repeated: the same of the
last plays, with the first ones in place of the simulation; `compared`, `compared_repeated`: how
many there were. More: `pairs`, for each (workload, policy) what was measured (`plays`, `real` their
mean), simulated, and the ratio; `fit`, the coefficients and their errors on steps that were not
fitted.
"""

import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.calibrated import (
    SETS,
    SLOTS,
    Case,
    Workers,
    calibrate,
    calibration,
    client,
    played,
    timed,
    ttfts,
)
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.cost_fit import Fitted
from tests.benchmarks.shared.eldr_rounds import say, warm_up
from tests.benchmarks.shared.lengths import workload
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, RunOutcome, new_session
from toolkit.bench.stats import orders
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import discover
from toolkit.embedded.prompts import model_path
from toolkit.settings.load import load_deployment
from toolkit.simulate.costs.linear import Linear
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.request import Request
from toolkit.simulate.session import with_policies
from toolkit.simulate.simulation import Simulation, Window

MEASURES = ("toolkit/simulate", "toolkit/decide", "toolkit/policies", "patches/pd")

FIGURES = ("throughput", "tpot", "ttft")
ORDERED = (*FIGURES, "ttft_p99", "kv_spread")
Figures = dict[str, float]


@dataclass
class Pair:
    """A workload under a policy: what was simulated, and each play on the workers."""

    workload: str
    policy: str
    simulated: Figures
    plays: list[Figures] = field(default_factory=list)

    @property
    def real(self) -> Figures:
        """Mean of the plays."""
        return {
            name: statistics.fmean(play[name] for play in self.plays) for name in self.simulated
        }

    @property
    def ratio(self) -> Figures:
        """Simulated / real."""
        return {name: self.simulated[name] / value for name, value in self.real.items()}

    def shown(self) -> str:
        last, said = self.plays[-1], self.simulated
        parts = (f"{name} {last[name]:.4g} ({said[name] / last[name]:.3f})" for name in ORDERED)
        return f"real (simulated / real): {', '.join(parts)}"

    def keys(self) -> dict[str, Any]:
        return asdict(self) | {"real": self.real, "ratio": self.ratio}


def cases(pool: TokenPool, requests: int, rate: float, hidden: bool) -> list[Case]:
    mix = workload(None, pool, 1, requests, (160.0, 96.0))
    chat = workload(None, pool, 2, requests, (90.0, 140.0))
    open_ = timed(workload(None, pool, 3, requests, (160.0, 96.0)), rate, 3)
    return [
        Case("mix", mix, 2 * (SLOTS + 8), hidden),
        Case("chat", chat, 40, hidden),
        Case("open", open_, None, hidden),
    ]


def simulated(case: Case, policy: str, path: Path, found: Fitted) -> dict[str, float]:
    """The same requests in the simulator."""
    fleet = with_policies(fleet_of(load_deployment(path), machine=found.cost.machine), policy)
    if case.hidden:  # by a logit processor, with which a request waits for decode's first token
        router = fleet.router.model_copy(update={"first_token": "decode"})
        fleet = fleet.model_copy(update={"router": router})
    requests = [
        Request(n, item.arrival_s, len(item.prompt), item.output_tokens, user=item.user)
        for n, item in enumerate(case.items.items)
    ]
    window = Window(full=case.in_flight is not None)  # as a real round's spread is taken
    run = Simulation(fleet, found.cost, iter(requests), in_flight=case.in_flight, window=window)
    spread = run.run().result()["kv_spread"]
    end = max(request.ended for request in requests)
    return {
        "throughput": sum(request.output for request in requests) / end,
        "tpot": statistics.fmean(r.tpot for r in requests if r.output > 1),
        "kv_spread": spread,
    } | ttfts([request.ttft for request in requests])


def measured(outcome: RunOutcome) -> dict[str, float]:
    assert outcome.decode is not None, outcome.note
    return client(outcome) | {"kv_spread": outcome.decode.metrics()["kv_spread"]}


def in_order(pairs: Sequence[Pair], told: Sequence[Figures], real: Sequence[Figures]) -> list[bool]:
    """Of every clear difference between policies in `real`, whether it is the same way round in
    what was `told`: each with an entry for each of `pairs`."""
    kept = []
    for (one, *first), (other, *second) in combinations(zip(pairs, told, real, strict=True), 2):
        if one.workload != other.workload:
            continue
        for figure in ORDERED:
            said, measured = (a[figure] / b[figure] for a, b in zip(first, second, strict=True))
            if not 1 / 1.1 < measured < 1.1:
                kept.append((measured > 1) == (said > 1))
    return kept


def errors(told: Sequence[Figures], real: Sequence[Figures]) -> dict[str, list[float]]:
    """Of each of FIGURES, by how much each is off."""
    return {
        figure: [abs(a[figure] / b[figure] - 1) for a, b in zip(told, real, strict=True)]
        for figure in FIGURES
    }


async def measure(up: Any, path: Path, workers: Workers, options: Any) -> tuple[list[Pair], Fitted]:
    pairs: list[Pair] = []
    async with new_session(600.0) as session:
        target = await discover(session, up.router_url)
        pool = token_pool(load_tokenizer(target.model_path))
        urls = [worker.url for worker in up.workers]
        cal = calibration(pool, options.calibration, workers.hidden)
        await warm_up(
            session, target, cal[1].items, BenchLoad(concurrency=16, hidden=workers.hidden)
        )
        found = await calibrate(session, target, up, cal, workers)
        say(f"fitted: {found}")
        for case in cases(pool, options.requests, options.rate, workers.hidden):
            mine = [
                Pair(case.name, policy, simulated(case, policy, path, found))
                for policy in options.policies.split(",")
            ]
            for order in orders(len(mine), options.plays, seed=0):
                for pair in (mine[at] for at in order):
                    outcome = await played(session, target, urls, case, pair.policy)
                    pair.plays.append(measured(outcome))
                    say(f"{case.name} {pair.policy}: {pair.shown()}")
            pairs += mine
    return pairs, found


def again(path: Path, recipe: Path, options: Any) -> tuple[list[Pair], Fitted]:
    """The last line of a result file, simulated anew."""
    known = json.loads(path.read_text().splitlines()[-1])["figures"]
    fit = known["fit"]
    found = Fitted(Linear.model_validate(fit["cost"]), fit["errors"])
    pool = token_pool(load_tokenizer(model_path()))
    hidden = SETS[options.set].hidden
    made = {case.name: case for case in cases(pool, options.requests, options.rate, hidden)}
    pairs = []
    for pair in known["pairs"].values():
        said = simulated(made[pair["workload"]], pair["policy"], recipe, found)
        pairs.append(Pair(pair["workload"], pair["policy"], said, pair["plays"]))
        say(f"{pair['workload']} {pair['policy']}: {pairs[-1].shown()}")
    return pairs, found


def compare(
    result: Result,
    pairs: Sequence[Pair],
    told: Sequence[Figures],
    real: Sequence[Figures],
    names: tuple[str, str, str],
) -> None:
    error, kept, compared = names
    for figure, values in errors(told, real).items():
        result.keys[f"{figure}_{error}"] = max(values)
        result.keys[f"{figure}_{error}_mean"] = statistics.fmean(values)
    found = in_order(pairs, told, real)
    result.keys[kept] = statistics.fmean(found) if found else float("nan")
    result.keys[compared] = len(found)


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--requests", {"type": int, "default": 280, "help": "of each workload"}),
        ("--calibration", {"type": int, "default": 480, "help": "requests"}),
        ("--rate", {"type": float, "default": 3.0, "help": "of the workload `open`"}),
        ("--set", {"choices": sorted(SETS), "default": "split"}),
        ("--policies", {"help": "separated by commas [default: three of the set]"}),
        ("--again", {"type": Path, "help": "a result file whose plays are simulated anew"}),
        ("--plays", {"type": int, "default": 2, "help": "of each pair, on the workers"}),
    )
    workers = SETS[options.set]
    options.policies = options.policies or ",".join(workers.policies)
    if options.quick:
        options.requests, options.calibration, options.plays = 60, 280, 1
        options.policies = workers.policies[0]
    result = Result()
    with tempfile.TemporaryDirectory(prefix="validation-") as folder:
        path = workers.recipe(Path(folder))
        if options.again is not None:
            pairs, found = again(options.again, path, options)
        else:
            with hosted(path, Path(folder)) as up:
                pairs, found = asyncio.run(measure(up, path, workers, options))
    first, last = ([pair.plays[at] for pair in pairs] for at in (0, -1))
    told, real = [pair.simulated for pair in pairs], [pair.real for pair in pairs]
    compare(result, pairs, told, real, ("error", "order_kept", "compared"))
    if len(pairs[0].plays) > 1:
        compare(result, pairs, first, last, ("noise", "order_repeated", "compared_repeated"))
    result.keys["pairs"] = {f"{p.workload} {p.policy}": p.keys() for p in pairs}
    result.keys["fit"] = asdict(found) | {"cost": found.cost.model_dump()}
    result.emit(len(pairs))


if __name__ == "__main__":
    main()
