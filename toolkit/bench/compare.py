"""`--compare A,B`: policies against each other in short paired rounds on identical requests."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.bench.class_ratios import CLASSES, class_ratios, doubts
from toolkit.bench.decode import SERIES
from toolkit.bench.errors import BenchError
from toolkit.bench.groups import TURN_SERIES, by_class, turn_metrics
from toolkit.bench.metrics import LATENCIES, Slo, summarise
from toolkit.bench.progress import ComparisonProgress
from toolkit.bench.runner import BenchLoad, RunOutcome, check, play
from toolkit.bench.stats import Ratio, orders, paired_ratio
from toolkit.bench.target import Target, flush_caches, get_json, switch, worker_urls
from toolkit.bench.workload import Workload
from toolkit.policies.rounds.pooling import bare

if TYPE_CHECKING:
    import aiohttp

STATISTICS = ("mean", "median", "p90", "p99")
PLAIN = (
    "output_throughput",
    "window_throughput",
    "distinct_experts",
    "mean_batch",
    "step_tokens",
    "mean_kv_tokens",
    "kv_spread",
    "barrier_share",
    "cache_hit_rate_pct",
)
"""Metrics with one value a round."""
LABELLED = "label_oracle"
JOINED = "composed"
"""A decode policy with + in its parameter; no prefill policy has that."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison, written `[late:|concurrent:][PREFILL+]DECODE`; a policy may carry
    a parameter, as in `eldr@0.05` or `composed@eldr+br0`, in which : and + mean something else."""

    text: str
    body: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Raises BenchError for a dispatch that is neither late nor concurrent."""
        text = text.strip()
        body: dict[str, str] = {}
        dispatch, colon, policies = text.partition(":")
        if not colon or "@" in dispatch:
            policies = text
        elif dispatch not in ("late", "concurrent"):
            raise BenchError(f"{text!r}: dispatch is late or concurrent, not {dispatch!r}")
        else:
            body["dispatch"] = dispatch
        prefill, plus, decode = policies.partition("+")
        if plus and bare(prefill).partition("@")[0] != JOINED:
            body["prefill"] = prefill
        else:
            decode = policies
        body["decode"] = decode
        if not all(body.values()):
            raise BenchError(f"{text!r} is not [late:|concurrent:][PREFILL_POLICY+]DECODE_POLICY")
        return cls(text, body)


@dataclass(slots=True)
class Comparison:
    """Per arm, a metrics dictionary a round; and the ratios of the first arm to each other one.

    Where decode workers can be listened to, a round also has what `Decode.metrics` gives, and
    under "decode_workers" the same of each worker and under "decode_by_batch" by batch size; else
    `remarks` say why not. Where requests have classes, "classes" has the figures of each.
    """

    arms: list[Arm]
    rounds: list[list[dict[str, Any]]]
    flushed: bool = True
    remarks: list[str] = field(default_factory=list)
    ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    by_class: dict[str, dict[str, dict[str, Ratio]]] = field(default_factory=dict)
    """{"A / B": {"best_effort": {"mean_ttft_ms": Ratio, ...}}}; see `class_ratios`."""

    def conclude(self) -> None:
        """Fill `ratios`: {"A / B": {"mean_ttft_ms": Ratio, ...}}. Below 1: A is faster; and
        `by_class`."""
        for index in range(1, len(self.arms)):
            name = f"{self.arms[0].text} / {self.arms[index].text}"
            self.ratios[name] = {}
            for key in ratio_keys():
                ours = [metrics.get(key) or 0 for metrics in self.rounds[0]]
                other = [metrics.get(key) or 0 for metrics in self.rounds[index]]
                if min(*ours, *other) > 0:
                    self.ratios[name][key] = paired_ratio(ours, other)
            self.by_class[name] = class_ratios(self.rounds[0], self.rounds[index])

    def median(self, arm: int, key: str) -> float | None:
        """The median over an arm's rounds; None when a round lacks the metric."""
        values = [metrics.get(key) for metrics in self.rounds[arm]]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known and len(known) == len(values) else None

    def as_json(self) -> dict[str, Any]:
        """Plain data for the JSON file."""
        return {
            "arms": [arm.text for arm in self.arms],
            "caches_flushed": self.flushed,
            "remarks": self.remarks,
            "rounds": {
                arm.text: rounds for arm, rounds in zip(self.arms, self.rounds, strict=True)
            },
            "ratios": {pair: _plain(table) for pair, table in self.ratios.items()},
            "class_ratios": {
                pair: {name: _plain(table) for name, table in classes.items()}
                for pair, classes in self.by_class.items()
            },
        }


def _plain(table: Mapping[str, Ratio]) -> dict[str, dict[str, float | int]]:
    return {
        key: {"value": r.value, "low": r.low, "high": r.high, "pairs": r.pairs}
        for key, r in table.items()
    }


def ratio_keys() -> list[str]:
    """The metrics that are compared: four statistics of each latency, at the client and in the
    decode workers, and those with one value a round."""
    names = (*LATENCIES, *TURN_SERIES, *SERIES)
    latencies = [f"{stat}_{name}_ms" for name in names for stat in STATISTICS]
    return [*latencies, *PLAIN]


async def compare(
    session: aiohttp.ClientSession,
    target: Target,
    rounds: Sequence[Workload],
    load: BenchLoad,
    arms: list[Arm],
    seed: int,
    slo: Slo | None = None,
    report: Callable[[str], None] = lambda line: None,
    keep: Callable[[int, int, RunOutcome], None] = lambda arm, number, outcome: None,
    loads: Mapping[str, BenchLoad] | None = None,
    elsewhere: Mapping[str, Target] | None = None,
) -> Comparison:
    """Play every round once an arm, prefix caches emptied before each, in balanced random order.

    `loads`: how the workload is played to single arms, by their text, where not as `load` says;
    `elsewhere`: arms, by their text, that are played to another deployment than `target`.
    `keep` gets the outcome of each arm and round, `report` the
    lines of a table that grows. Restores the routers' policies at the end.
    Raises BenchError on the first play that is no result, naming its arm and round.
    """
    if load.label is None and any(LABELLED in arm.body["decode"] for arm in arms):
        raise BenchError(f"{LABELLED} needs to be told: --label domain, language, cell or class")
    targets = [(elsewhere or {}).get(arm.text, target) for arm in arms]
    states = {}
    for url in {each.url for each in targets}:
        states[url] = await get_json(session, url + "/workers")
        if not states[url]:
            raise BenchError("--compare needs this project's router: GET /workers is missing here")
    result = Comparison(arms, [[] for _ in arms])
    progress = ComparisonProgress([arm.text for arm in arms], len(rounds))
    try:
        for arm, at in zip(arms, targets, strict=True):
            # A policy that the router refuses is an error now, not in mid-run.
            await switch(session, at, arm.body)
        for number, order in enumerate(orders(len(arms), len(rounds), seed)):
            for index in order:
                at = targets[index]
                await switch(session, at, arms[index].body)
                urls = worker_urls(states[at.url], at.url)
                result.flushed &= await flush_caches(session, urls)
                own = (loads or {}).get(arms[index].text, load)
                outcome = await play(session, at, rounds[number], own)
                where = f"round {number + 1}, {arms[index].text}"
                metrics = judged(outcome, rounds[number], where, slo)
                keep(index, number, outcome)
                result.remarks += [r for r in outcome.remarks() if r not in result.remarks]
                result.rounds[index].append(metrics)
                for line in progress.lines(index, number, metrics):
                    report(line)
    finally:
        for each in dict.fromkeys(targets):
            await switch(session, each, restored(states[each.url]))
    result.conclude()
    result.remarks += doubts(result.rounds)
    return result


def judged(outcome: RunOutcome, workload: Workload, where: str, slo: Slo | None) -> dict[str, Any]:
    """The metrics of one round of one arm. BenchError: it is no result; `where` it was played."""
    try:
        check(outcome, len(workload))
    except BenchError as error:
        raise BenchError(f"{where}: {error}") from error
    metrics = summarise(outcome.samples, outcome.duration_s, slo)
    metrics |= turn_metrics(workload, outcome.samples)
    if classes := by_class(workload, outcome.samples, outcome.duration_s, slo):
        metrics[CLASSES] = classes
    decode = outcome.while_full()
    if decode is not None:
        metrics |= decode.metrics()
        metrics["decode_workers"] = decode.by_worker()
        metrics["decode_by_batch"] = decode.by_batch()
    return metrics


def restored(state: dict[str, Any]) -> dict[str, str]:
    """The order that brings a router's policies back, from its `GET /workers`."""
    policies = state.get("policies") or {}
    wanted = {**policies, "dispatch": state.get("dispatch")}
    return {key: wanted[key] for key in ("prefill", "decode", "dispatch") if wanted.get(key)}
