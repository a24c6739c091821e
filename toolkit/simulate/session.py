"""Policies on the same requests, each seed once: what a simulation is asked for most often."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.bench.compare import Arm
from toolkit.bench.stats import Ratio, paired_ratio
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.recorder import CLASSES, LatencyLimits, Recorder
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows

Requests = Callable[[int], Iterable[Request]]
"""The requests of a seed, fresh ones at each call."""


@dataclass(frozen=True)
class SimulationSetting:
    """What is the same for all arms. `arms`: as `toolkit bench` writes them."""

    fleet: Fleet
    cost: CostModel
    requests: Requests
    arms: Sequence[str]
    seeds: int = 3
    experts: SimulatedExperts | None = None
    in_flight: int | None = None
    window: Window = field(default_factory=Window)
    slo: tuple[float, ...] = LatencyLimits()


@dataclass
class Outcome:
    """`figures` of each arm, one for each seed; `recorders` of the first seed; `seconds` in all."""

    arms: list[str]
    figures: list[list[dict[str, Any]]]
    recorders: list[Recorder]
    seconds: float

    @property
    def classes(self) -> list[str]:
        """Of which every seed has requests."""
        runs = [each for figures in self.figures for each in figures]
        return [name for name in CLASSES if all(f"{name}.requests" in each for each in runs)]

    @property
    def moving(self) -> bool:
        """Whether requests may move."""
        return all("moves" in each for figures in self.figures for each in figures)

    def median(self, arm: int, name: str) -> float:
        return float(statistics.median(each[name] for each in self.figures[arm]))

    def ratio(self, arm: int, other: int, name: str) -> Ratio | None:
        """Of the seeds' pairs; None where a value is not a positive number."""
        ours, theirs = ([each[name] for each in self.figures[i]] for i in (arm, other))
        if not all(x > 0 and math.isfinite(x) for x in (*ours, *theirs)):
            return None
        return paired_ratio(ours, theirs)


def run(setting: SimulationSetting, report: Callable[[str], None] = lambda text: None) -> Outcome:
    """Every arm on every seed. SimulateError: nothing arrived."""
    begin = time.perf_counter()
    figures: list[list[dict[str, Any]]] = [[] for _ in setting.arms]
    recorders: list[Recorder] = []
    for seed in range(setting.seeds):
        for place, arm in enumerate(setting.arms):
            simulation = Simulation(
                with_policies(setting.fleet, arm),
                setting.cost,
                _patterned(setting, seed),
                setting.experts,
                seed,
                setting.in_flight,
                setting.window,
                setting.slo,
            )
            recorder = simulation.run()
            if not recorder.all.requests:
                raise SimulateError("no request arrived in the time that is looked at")
            hits, prompts = simulation.prompt_tokens
            found = recorder.result() | {"prefix_share": hits / max(prompts, 1)}
            figures[place].append(found | simulation.move_figures)
            if not seed:
                recorders.append(recorder)
            report(f"seed {seed} {arm}: {recorder.ended} requests")
    return Outcome(list(setting.arms), figures, recorders, time.perf_counter() - begin)


def with_policies(fleet: Fleet, arm: str) -> Fleet:
    """The fleet with the policies, and the dispatch if it says one, of an arm as `toolkit bench`
    writes it. ValueError: an unknown policy, or one for prefill workers that there are none of;
    BenchError: no arm."""
    names = {"prefill": "prefill_policy", "decode": "decode_policy", "dispatch": "dispatch"}
    body = Arm.parse(arm).body
    if fleet.worker is not None and body.keys() - {"decode"}:
        raise ValueError(f"{arm!r}: plain workers have one policy, and no dispatch")
    chosen = {names[key]: value for key, value in body.items()}
    router = type(fleet.router).model_validate(fleet.router.model_dump() | chosen)
    return fleet.model_copy(update={"router": router})


def _patterned(setting: SimulationSetting, seed: int) -> Iterator[Request]:
    requests = iter(setting.requests(seed))
    return requests if setting.experts is None else with_rows(requests, setting.experts, seed)
