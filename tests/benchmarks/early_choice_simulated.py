"""The decode worker of a long prompt, chosen while its last chunks run: 8k to 128k tokens over
100 and 400 Gb/s, in the simulator.

Four prefill workers (one H200 of Qwen3-30B-A3B with 40,000 tokens/s, or a node of DeepSeek-V3 with
50,000; chunks of 8,192 tokens, overlap scheduler) and 16 decode ranks of one server that take their
steps together, as the router's own decider chooses them. Nine of ten requests are short (lognormal,
median 1,500 tokens), the tenth has the length of the row; arrivals are Poisson, at 60 % of what the
prefill workers can do; answers are lognormal, median 250 tokens. Each row is played with the choice
at the prompt's end (late dispatch), with `early_choice` as it ships (3 % of the prompt's prefill
time) and with it forced (0), the same requests each time, under four seeds.

keys: for each MODEL_LENGTH_GBIT, of its long requests: `_exposed_ms`, `_exposed_late_ms` (from the
end of a prompt to its KV on the decode rank; medians; with `early_choice: 0`), `_taken` (the share
of long prompts for which the shipped rule chooses early), `_ttft_ratio` (to the first token of
decode, mean, shipped / late), `_tpot_ratio` and `_step_ratio` (all requests' mean TPOT; the time of
all decode steps), each a geometric mean over the seeds with its 95 % interval. `changed_POLICY`: of
long prompts chosen early, for how many that policy would have chosen another rank when they were
through (the same views, without the request itself), over all rows; `more_kv_POLICY`: how much more
KV the chosen rank has then than the one that has least, in parts of the ranks' mean. exposed_ms,
exposed_ms_late, ttft_ratio, changed_choice: of 128k tokens of DeepSeek-V3 (16 chunks) over 400
Gb/s, and `level`.
"""

import copy
import random
import statistics
from collections.abc import Iterator
from math import isnan
from typing import Any

from msgspec.structs import replace

from tests.benchmarks.shared.common import Result, arguments, interval
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.worker_states import SimulatedRankState

MEASURES = ("toolkit/policies/early_choice.py", "toolkit/simulate", "toolkit/decide")

PREFILLS, RANKS, CHUNK = 4, 16, 8192
LOAD, LONG_SHARE = 0.6, 0.1
SHIPPED, FORCED = 0.03, 0.0
LENGTHS = {"8k": 8 * 1024, "32k": 32 * 1024, "128k": 128 * 1024}
GBITS = (100, 400)
POLICIES = ("level", "shortest_queue")
MODELS: dict[str, tuple[float, float, Decode]] = {
    # Bytes of KV a token, prefill tokens a second and worker, a decode step.
    "deepseek": (61 * 576 * 2, 50_000, Decode(base=0.02, per_request=2e-5, per_kv_token=2e-8)),
    "qwen": (48 * 2 * 4 * 128 * 2, 40_000, Decode(base=0.006, per_request=3e-5, per_kv_token=4e-8)),
}


def cost(model: str, gbit: int) -> Linear:
    """What things take; a transfer has 2 ms of its own."""
    kv, rate, decode = MODELS[model]
    return Linear(
        decode=decode,
        prefill=Prefill(base=0.002, per_token=1 / rate),
        transfer=TransferCost(base=0.002, per_token=kv / (gbit / 8 * 1e9)),
    )


def requests(model: str, length: int, count: int, seed: int) -> Iterator[Request]:
    """Of which a tenth is long."""
    source = random.Random(seed)
    mean = LONG_SHARE * length + (1 - LONG_SHARE) * 1500 * 1.38
    rate = LOAD * PREFILLS * MODELS[model][1] / mean
    now = 0.0
    for number in range(count):
        now += source.expovariate(rate)
        short = min(CHUNK, max(16, round(source.lognormvariate(7.313, 0.8))))
        prompt = length if source.random() < LONG_SHARE else short
        output = min(2000, max(2, round(source.lognormvariate(5.52, 0.7))))
        yield Request(number, now, prompt, output)


class Played(Simulation):
    """With a look at what a policy would choose when a prompt is through that was chosen for."""

    changed: list[tuple[bool, float]]
    kept: list[Request]

    def _prefilled(self, request: Request) -> None:
        if request.asked and request.place is not None:
            self.changed.append(self._otherwise(request))
        super()._prefilled(request)

    def _otherwise(self, request: Request) -> tuple[bool, float]:
        """Whether the policy would choose another rank now; by how much of the mean the chosen one
        has more KV than the rank that has least, both without the request."""
        states = self.router.rank_states
        views = [_without(state, request, self.events.now) for state in states]
        decision = copy.deepcopy(self.router.decode_policy).choose(views, request.view)
        other = decision is None or states[decision.index].rank.key != request.place
        kv = [view.load.used_tokens + view.load.waiting_tokens for view in views]
        own = next(n for n, state in enumerate(states) if state.rank.key == request.place)
        return other, (kv[own] - min(kv)) / max(statistics.fmean(kv), 1.0)


def _without(state: SimulatedRankState, request: Request, now: float) -> Any:
    """The rank as it would be without this request."""
    view = state.view(now, True)
    if state.rank.key != request.place:
        return view
    load = view.load
    assert load is not None
    tokens = request.prompt
    load = replace(
        load, waiting=load.waiting - 1, waiting_tokens=max(0, load.waiting_tokens - tokens)
    )
    left = max(0, view.inflight_tokens - tokens)
    return replace(view, inflight=view.inflight - 1, inflight_tokens=left, load=load)


def play(
    model: str, gbit: int, length: int, early: float | None, policy: str, count: int, seed: int
) -> tuple[dict[str, float], list[tuple[bool, float]]]:
    """One run: figures, and what would have been chosen at the end."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=PREFILLS, chunk=CHUNK, early_choice=early),
        decode=DecodeFleet(dp=RANKS, dp_attention=True, slots=128, kv_tokens=2_000_000),
        router=RouterFleet(decode_policy=policy, first_token="decode"),
    )
    asked = list(requests(model, length, count, seed))
    run = Played(fleet, cost(model, gbit), asked, window=Window(), sample_s=1.0)
    run.changed, run.kept = [], asked
    run.run()
    long = [each for each in asked if each.prompt == length]
    steps = sum(group.busy_s for group in run.groups)
    return {
        "exposed": 1000 * statistics.median(each.received - each.prefilled for each in long),
        "ttft": statistics.fmean(each.ttft for each in long),
        "tpot": statistics.fmean(each.tpot for each in asked if not isnan(each.tpot)),
        "step": steps,
        "taken": statistics.fmean(each.asked for each in long),
    }, run.changed


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    seeds, count = (2, 400) if options.quick else (4, 2000)
    keys: dict[str, Any] = {}
    changed: dict[str, list[tuple[bool, float]]] = {policy: [] for policy in POLICIES}
    played = 0
    for model in MODELS:
        for named, length in LENGTHS.items():
            for gbit in GBITS:
                row = f"{model}_{named}_{gbit}"
                found: dict[float | None, list[dict[str, float]]] = {}
                for early in (None, SHIPPED, FORCED):
                    for seed in range(seeds):
                        figures, other = play(model, gbit, length, early, "level", count, seed)
                        found.setdefault(early, []).append(figures)
                        played += count
                        if early == FORCED:
                            changed["level"] += other
                for seed in range(seeds):
                    _, other = play(model, gbit, length, FORCED, "shortest_queue", count, seed)
                    changed["shortest_queue"] += other
                keys |= _row(row, found)
    for policy, others in changed.items():
        keys[f"changed_{policy}"] = statistics.fmean(other for other, _ in others)
        keys[f"more_kv_{policy}"] = statistics.fmean(more for _, more in others)
    whole = "deepseek_128k_400"
    result.keys |= {
        "exposed_ms": keys[f"{whole}_exposed_ms"],
        "exposed_ms_late": keys[f"{whole}_exposed_late_ms"],
        "ttft_ratio": keys[f"{whole}_ttft_ratio"],
        "changed_choice": keys["changed_level"],
    } | keys
    result.emit(played)


def _row(row: str, found: dict[float | None, list[dict[str, float]]]) -> dict[str, float]:
    late, shipped, forced = found[None], found[SHIPPED], found[FORCED]
    keys = {
        f"{row}_exposed_ms": statistics.fmean(each["exposed"] for each in forced),
        f"{row}_exposed_late_ms": statistics.fmean(each["exposed"] for each in late),
        f"{row}_taken": statistics.fmean(each["taken"] for each in shipped),
    }
    for name in ("ttft", "tpot", "step"):
        for arm, runs in (("", shipped), ("forced_", forced)):
            ratios = [ours[name] / theirs[name] for ours, theirs in zip(runs, late, strict=True)]
            value, low, high = interval(ratios)
            of = f"{row}_{arm}{name}_ratio"
            keys |= {of: value, f"{of}_low": low, f"{of}_high": high}
    return keys


if __name__ == "__main__":
    main()
