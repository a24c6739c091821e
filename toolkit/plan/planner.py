"""From a deployment and its traffic to settings, with what they are predicted to bring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.bench.stats import Ratio, mean_interval, paired_ratio
from toolkit.contract.request_class import RequestClass
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError, Spent
from toolkit.plan.expert_layout import Layouts
from toolkit.plan.matter import Effect, effects, improvement
from toolkit.plan.needs import PlanNeeds, needs
from toolkit.plan.objective import Figures, PlanSlo
from toolkit.plan.placing import remarks as about_experts
from toolkit.plan.preempt import stoppable
from toolkit.plan.search import ARMS, Search, choose
from toolkit.plan.space import plain, searched
from toolkit.plan.split import nearest, split_of, splits, with_split
from toolkit.plan.stages import stager
from toolkit.plan.stages import why_not as why_no_stages
from toolkit.plan.trials import Trials
from toolkit.policies import BALANCERS
from toolkit.settings.document import Document, get, normal, put
from toolkit.settings.router.bounds import Waits
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.recorder import CLASSES
from toolkit.simulate.session import Requests

SPARE = 2
"""Times the mean number in flight that the router should let in."""
ROUNDS = 2
"""Times that the plan may still move to a neighbour which all seeds find better."""
FEWEST = 8
"""Simulations that a search takes at least."""
PREDICTED = (
    "ttft_mean",
    "ttft_p50",
    "ttft_p99",
    "tpot_mean",
    "tpot_p99",
    "e2e_mean",
    "output_tokens_s",
    "goodput_s",
    "good_share",
)


@dataclass(frozen=True)
class Task:
    """What is planned for. `document`: the deployment file; `seeds`: how many predict, 1 and on
    (seed 0 is the search's own); `workers`: replicas of both roles, None for the file's GPUs;
    `budget`: simulations at most; `first`: requests that a quick look takes; `in_flight`: so many
    at any time, whenever they were to come; `layouts`: where experts may lie, None where that is
    not searched."""

    document: Document
    given: Given
    cost: CostModel
    requests: Requests
    slo: PlanSlo = field(default_factory=PlanSlo)
    seeds: int = 3
    experts: SimulatedExperts | None = None
    workers: int | None = None
    budget: int = 200
    first: int = 2000
    in_flight: int | None = None
    layouts: Layouts | None = None

    def sized(self, seeds: int, workers: int | None, budget: int, first: int) -> Task:
        """The same with how much is looked at."""
        return replace(self, seeds=seeds, workers=workers, budget=budget, first=first)


@dataclass
class Planned:
    """`plan` against `baseline` (the file's sizes and split, round robin and the best of
    `balancers`, load balancers that need nothing of this project), with the figures of each seed.
    `met`: whether the plan meets the objectives; if not, what it `needs`.
    `unseen`: knobs that no simulation was left for. `rate`: requests a second that arrive; in a
    closed loop those that the plan takes."""

    task: Task
    baseline: Candidate
    plan: Candidate
    before: Figures
    after: Figures
    rate: float
    balancers: dict[str, Figures] = field(default_factory=dict)
    met: bool = True
    effects: list[Effect] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    needs: PlanNeeds | None = None
    remarks: list[str] = field(default_factory=list)
    simulations: int = 0

    @property
    def load(self) -> str:
        """What it was planned for."""
        if self.task.in_flight is None:
            return f"{self.rate:.3g} requests/s"
        return f"{self.task.in_flight} requests in flight, {self.rate:.3g} requests/s"

    def gain(self, name: str) -> Ratio | None:
        """Plan divided by baseline, paired by seed; None where a figure is 0."""
        ours, theirs = ([each[name] for each in x] for x in (self.after, self.before))
        if not all(value > 0 and math.isfinite(value) for value in (*ours, *theirs)):
            return None
        return paired_ratio(ours, theirs)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        slo = self.task.slo
        return {
            "met": self.met,
            "slo": {
                "ttft_ms": _finite(slo.ttft * 1e3),
                "tpot_ms": _finite(slo.tpot * 1e3),
                "ls_ttft_ms": _finite(slo.urgent_ttft * 1e3),
                "attainment": slo.attainment,
            },
            "rate": self.rate,
            "in_flight": self.task.in_flight,
            "seeds": self.task.seeds,
            "simulations": self.simulations,
            "baseline": _described(self.baseline, self.before),
            "balancers": {
                name: [dict(each) for each in figures] for name, figures in self.balancers.items()
            },
            "plan": _described(self.plan, self.after),
            "gain": {
                name: None if (found := self.gain(name)) is None else found.keys("ratio")
                for name in _predicted([*self.before, *self.after])
            },
            "knobs": [effect.to_json() for effect in self.effects],
            "not_looked_at": self.unseen,
            "needs": None if self.needs is None else self.needs.to_json(),
            "remarks": self.remarks,
        }


def make(task: Task, report: Callable[[str], None] = lambda text: None) -> Planned:
    """The best settings that were found.

    PlanError: a deployment, a fleet or a budget that nothing can be planned for. SimulateError: one
    that is not simulated.
    """
    least = (len(BALANCERS) + 1 + ARMS) * task.seeds + FEWEST
    if task.budget < least:
        raise PlanError(f"--budget {task.budget} is too few with {task.seeds} seeds: {least} least")
    file = Candidate.of(normal(task.document), task.given)
    choices = splits(file.deployment, task.workers)
    start = with_split(file.document, nearest(choices, split_of(file.document)))
    own = Candidate.of(start, task.given)
    plains = [Candidate.of(plain(start, name), task.given) for name in BALANCERS]
    why_not = _locality(own, task.experts)
    why_no_stops = _classes(own, task)
    trials = Trials(
        *(task.cost, task.requests, task.slo, task.budget, task.experts, report),
        in_flight=task.in_flight,
        layouts=task.layouts,
    )
    drafting = own.fleet.drafting
    plans = stager(task.cost, task.requests, trials.rate(0), task.in_flight, drafting)
    slo = None if why_no_stops else task.slo
    knobs = searched(own, choices, not why_not, slo, plans, task.layouts)
    search = Search(trials, task.given, task.first)
    trials.ceiling = FEWEST + (task.budget - least) // 2
    arms = [search.candidate(document) for document in search.arms(plains[0].document, knobs)]
    trials.ceiling = task.budget
    seeds = range(1, task.seeds + 1)
    _check_classes(trials, seeds)
    baseline, before = choose(trials, plains, seeds)
    finalists = {
        (each.fleet, each.lay): each for each in (baseline, own, *arms) if each is not None
    }
    plan, after = choose(trials, list(finalists.values()), seeds)
    made = Planned(task, baseline, plan, before, after, rate=0.0)
    made.balancers = {
        name: trials.all(each, seeds) for name, each in zip(BALANCERS, plains, strict=True)
    }
    made.met = not task.slo.given or task.slo.met(after)
    if made.met:
        _refine(made, search, knobs, seeds)
    else:
        made.needs = needs(search, made.plan, seeds)
    made.rate = _rate(made, trials, seeds)
    made.simulations = trials.done
    made.remarks += [why for why in (why_not, why_no_stops, why_no_stages(own, plans)) if why]
    _remark(made, len(choices))
    if task.layouts is not None:
        made.remarks += about_experts(own, task.layouts, made.plan)
    return made


def _check_classes(trials: Trials, seeds: range) -> None:
    """PlanError: a limit for requests that there are none of."""
    if not trials.slo.by_class:
        return
    for seed in seeds:
        if not any(request.urgent for request in trials.requests(seed)):
            raise PlanError(
                "--slo-ls-ttft-ms: no request is latency-sensitive: give --ls-share, a trace or a "
                "traffic file with classes"
            )


def _rate(made: Planned, trials: Trials, seeds: range) -> float:
    if made.task.in_flight is None:
        return statistics.fmean(trials.rate(seed) for seed in seeds)
    return made.task.in_flight / statistics.fmean(each["e2e_mean"] for each in made.after)


def _refine(made: Planned, search: Search, knobs: Any, seeds: range) -> None:
    """Effects around the plan; it moves to a neighbour that is better beyond doubt."""
    for last in (*[False] * ROUNDS, True):
        made.effects, made.unseen = effects(search, made.plan, knobs, seeds)
        found = improvement(made.effects, made.after, made.task.slo)
        if found is None or last:
            return
        try:
            made.after = search.trials.all(found, seeds)
        except Spent:
            return
        made.plan = found


def _locality(own: Candidate, experts: SimulatedExperts | None) -> str:
    """Why policies that follow experts cannot be searched; empty where they can."""
    router = own.fleet.router
    if own.deployment.router.profile is None:
        return "policies that follow experts are not searched: the file names no router.profile"
    if experts is None or experts.signatures is None:
        return "policies that follow experts are not searched: --experts names no profile"
    if router.dispatch != "late":
        return "policies that follow experts are not searched: they need dispatch: late"
    return ""


def _classes(own: Candidate, task: Task) -> str:
    """Why `prefill.preempt` cannot be searched; empty where it can, or nobody asks for it."""
    if own.deployment.router.classes is None:
        asked = task.slo.by_class
        return "prefill.preempt is not searched: the file has no router.classes" if asked else ""
    kinds = {request.request_class for request in task.requests(0)}
    if not kinds >= {RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT}:
        return (
            "prefill.preempt is not searched: it takes latency-sensitive and best-effort requests "
            "(--ls-share, or a trace or traffic file with classes)"
        )
    if not stoppable(own):
        return "prefill.preempt is not searched: the model's config.json is not here"
    return ""


def _remark(made: Planned, choices: int) -> None:
    """What a reader should know, and the room that the router must have."""
    remarks = made.remarks
    if choices == 1:
        remarks.append("the split is not searched: only the file's fits its hosts and GPUs")
    if any(effect.name == "decode.dp" for effect in made.effects):
        remarks.append("decode.dp: step times of a rank and its KV pool are taken as the file's")
    if made.plan.fleet.prefill.preempt is not None:
        remarks.append(
            "prefill.preempt: it turns the overlap scheduler and prefill CUDA graphs off; what "
            "steps take longer for that is not in --cost"
        )
    same = len({tuple(sorted(each.items())) for each in made.before}) < len(made.before)
    if same and len(made.before) > 1:
        remarks.append(
            "every seed has the same requests (a trace with times of its own): intervals say "
            "nothing about other days"
        )
    inflight = max(made.rate * each["e2e_mean"] for each in made.after) * SPARE
    limit = get(made.plan.document, "router", "max_inflight") or Waits().max_inflight
    if inflight > limit:
        room = 1 << math.ceil(math.log2(inflight))
        document = put(made.plan.document, ("router", "max_inflight"), room)
        made.plan = Candidate.of(document, made.task.given)
        remarks.append(f"router.max_inflight: {room}, as {inflight / SPARE:.0f} are in flight")


def _predicted(figures: Figures) -> list[str]:
    """Of all requests, then of each class that every run has."""
    found = list(PREDICTED)
    for kind in CLASSES:
        if all(f"{kind}.requests" in each for each in figures):
            found += [f"{kind}.{name}" for name in PREDICTED if f"{kind}.{name}" in figures[0]]
    return found


def _described(candidate: Candidate, figures: Figures) -> dict[str, Any]:
    return {
        "split": list(split_of(candidate.document)),
        "prefill_policy": candidate.fleet.router.prefill_policy,
        "decode_policy": candidate.fleet.router.decode_policy,
        "fleet": candidate.fleet.model_dump(),
        "experts": candidate.lay._asdict(),
        "figures": [dict(each) for each in figures],
        "predicted": {
            name: mean_interval([each[name] for each in figures]).keys(name)
            for name in _predicted(figures)
            if all(math.isfinite(each[name]) for each in figures)
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
