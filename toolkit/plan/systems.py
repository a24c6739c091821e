"""Which systems can pay here: the questions of `toolkit bench suite`, answered by the simulator.

The same systems against the same alternatives, judged by the same rule; a sample is a seed of the
traffic in place of a start of workers. Beside each answer stands what it hangs on, by the costs
(`toolkit.plan.arithmetic`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.suite.expert_questions import BY_AFFINITY, BY_LOAD, PlacedExperts
from toolkit.bench.suite.question import E2E, Asked, Question, Subject, SuiteArm
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.variants import changed, variant
from toolkit.bench.suite.verdicts import SuiteVerdict, judge
from toolkit.contract.request_class import RequestClass
from toolkit.launch.errors import LaunchError
from toolkit.launch.model import read_model
from toolkit.plan.arithmetic import LOOKED_AT, Arithmetic
from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import PlanError
from toolkit.plan.stages import OFF, stager, staging, why_not
from toolkit.plan.trials import Trials
from toolkit.settings.document import Document, normal
from toolkit.simulate.costs.captured import Captured
from toolkit.simulate.errors import SimulateError

if TYPE_CHECKING:
    from toolkit.plan.planner import Task

CHUNKS = (256, 512, 1024, 2048, 4096)
"""Of best-effort prompts where nothing stops between layers: the best is the alternative."""
FIGURES = {
    "mean_e2e_latency_ms": "e2e_mean",
    "mean_tpot_ms": "tpot_mean",
    "mean_ttft_ms": "ttft_mean",
    "output_throughput": "output_tokens_s",
}
"""The suite's metrics, and the simulator's names."""
ABOUT_OURS = ("preempted prompts", "speculative decoding")
"""What the costs say of these is about what would be stopped, and about the draft. Of the others it
is about what they would be better than."""
EXPERTS = "experts"
"""The variant whose workers capture experts."""
NOT_SIMULATED: Mapping[Subject, str] = {
    "relocated experts": "SGLang's EPLB is not simulated: --placement search says when moving "
    "pays, toolkit bench suite whether it does against EPLB",
    "expert placement": "two-batch overlap is not simulated: --placement search compares "
    "placements, toolkit bench suite asks with overlap",
}
"""Of these the strongest alternative is missing here, so no answer would be *on*."""
ANY_PLACEMENT = PlacedExperts(dict.fromkeys((BY_LOAD, BY_AFFINITY), "not made"))
"""What could be asked of a profile is left out for the reason that counts here."""


@dataclass(frozen=True)
class SystemAnswer:
    """`verdict`: as of the suite; `because`: what it hangs on, by the costs; empty where the costs
    say nothing of it."""

    verdict: SuiteVerdict
    because: str

    @property
    def system(self) -> Subject:
        return self.verdict.question.system


@dataclass(frozen=True)
class SystemsPlanned:
    """`left_out`: systems that were not asked about, and why. `simulations`: that it took."""

    answers: tuple[SystemAnswer, ...]
    left_out: tuple[tuple[Subject, str], ...]
    simulations: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "answers": [_described(each) for each in self.answers],
            "left_out": [{"system": name, "why": why} for name, why in self.left_out],
            "simulations": self.simulations,
        }


def answer(
    task: Task, capture: float, report: Callable[[str], None] = lambda text: None
) -> SystemsPlanned:
    """All that can be asked of the task's deployment. `capture`: the share by which a prefill takes
    longer where its experts are captured.

    Raises:
        PlanError: nothing can be asked, or the simulations of the budget are too few.
        SimulateError: the deployment is not simulated.
    """
    document, why_no_stages = _staged(normal(task.document), task)
    try:
        asked = questions_for(document, CHUNKS, ANY_PLACEMENT)
    except ValueError as error:
        raise PlanError(str(error)) from error
    players = _Players(task, document, asked, capture, report)
    answers: list[SystemAnswer] = []
    left = [
        (each.system, why_no_stages if each.system == "stages" and why_no_stages else each.why)
        for each in asked.left_out
    ]
    played: list[Question] = []
    for question in asked.questions:
        if question.system == "expert locality" and _is_dense(document, task):
            dense = SuiteVerdict(question, "off", "the model has no experts")
            answers.append(SystemAnswer(dense, ""))
        elif why := _why_not(question, task):
            left.append((question.system, why))
        else:
            played.append(_in_open_loop(question) if task.in_flight is None else question)
    arms = {(arm.variant, arm.name) for question in played for arm in question.arms}
    least = task.seeds * len(arms)
    if task.budget < least:
        raise PlanError(f"--budget {task.budget} is too few with {task.seeds} seeds: {least} least")
    for question in played:
        try:
            verdict, because = players.judged(question)
        except (SimulateError, PlanError) as error:
            left.append((question.system, str(error)))
        else:
            answers.append(SystemAnswer(verdict, because))
    order = [question.system for question in asked.questions]
    answers.sort(key=lambda each: order.index(each.system))
    return SystemsPlanned(tuple(answers), tuple(left), players.simulations)


def _staged(document: Document, task: Task) -> tuple[Document, str]:
    """With the stages that the traffic asks for, where the file has none; and why none are asked
    for, which is empty where there are some."""
    own = Candidate.of(document, task.given)
    if own.deployment.decode.stages:
        return document, ""
    rate = Trials(task.cost, task.requests, task.slo, task.budget).rate(0)
    plans = stager(task.cost, task.requests, rate, task.in_flight, own.fleet.drafting)
    if why := why_not(own, plans):
        return document, why.removeprefix("decode.stages: ").removeprefix("decode.stages ")
    (knob,) = staging(own, plans)
    most = max((int(value) for value in knob.values if value != OFF), default=1)
    return (document, "one stage is best") if most == 1 else (knob.write(document, str(most)), "")


def _in_open_loop(question: Question) -> Question:
    """Where requests come when they come, tokens a second are the traffic's and no policy's."""
    if question.metric.key == "output_throughput":
        return replace(question, metric=E2E)
    return question


def _why_not(question: Question, task: Task) -> str:
    """Why it cannot be asked of the simulator; empty where it can."""
    if question.system in NOT_SIMULATED:
        return NOT_SIMULATED[question.system]
    known = task.experts is not None and task.experts.signatures is not None
    if question.system == "expert locality" and not known:
        return "nobody says which experts requests use: --experts PROFILE"
    if question.traffic == "classes":
        kinds = {request.request_class for request in task.requests(0)}
        if not kinds >= {RequestClass.LATENCY_SENSITIVE, RequestClass.BEST_EFFORT}:
            return "no request is latency-sensitive or none is best-effort: --ls-share SHARE"
    return ""


def _is_dense(document: Document, task: Task) -> bool:
    """Whether the model's config.json is here and names no experts."""
    try:
        return read_model(Candidate.of(document, task.given).deployment).experts is None
    except LaunchError:
        return False


class _Players:
    """Plays arms; the same one is never played twice."""

    def __init__(
        self,
        task: Task,
        document: Document,
        asked: Asked,
        capture: float,
        report: Callable[[str], None],
    ) -> None:
        self._task, self._document, self._asked = task, document, asked
        self._seeds = range(1, task.seeds + 1)
        self._plain = self._trials(task, report)
        captured = replace(task, cost=Captured(task.cost, capture))
        self._capturing = self._trials(captured, report)

    @staticmethod
    def _trials(task: Task, report: Callable[[str], None]) -> Trials:
        return Trials(
            *(task.cost, task.requests, task.slo, task.budget, task.experts, report),
            in_flight=task.in_flight,
        )

    @property
    def simulations(self) -> int:
        return self._plain.done + self._capturing.done

    def judged(self, question: Question) -> tuple[SuiteVerdict, str]:
        """The verdict, and why it is so by the costs."""
        played = {arm.name: self._rounds(arm) for arm in question.arms}
        verdict = judge(question, played, per_start=1)
        shown = question.ours
        if question.system not in ABOUT_OURS:
            shown = next(arm for arm in question.others if arm.name == verdict.against)
        there = Arithmetic(
            self._task.cost,
            self._candidate(shown),
            list(itertools.islice(self._task.requests(0), LOOKED_AT)),
            self._played(shown),
            self._task.experts,
        )
        return verdict, there.of(question.system)

    def _rounds(self, arm: SuiteArm) -> dict[int, dict[str, Any]]:
        """By seed, under the names of the suite."""
        return {
            seed: _as_metrics(figures)
            for seed, figures in zip(self._seeds, self._played(arm), strict=True)
        }

    def _played(self, arm: SuiteArm) -> Sequence[Mapping[str, Any]]:
        trials = self._capturing if arm.variant == EXPERTS else self._plain
        return trials.all(self._candidate(arm), self._seeds)

    def _candidate(self, arm: SuiteArm) -> Candidate:
        policies = {"dispatch": arm.policies["dispatch"], "decode_policy": arm.policies["decode"]}
        file = changed(variant(self._document, self._asked, arm.variant), {"router": policies})
        return Candidate.of(file, self._task.given)


def _as_metrics(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a simulation as those of a round of the suite."""
    classes: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] = {CLASSES: classes}
    for name, theirs in FIGURES.items():
        if theirs in figures:
            found[name] = figures[theirs]
        for kind in RequestClass:
            if (value := figures.get(f"{kind.value}.{theirs}")) is not None:
                classes.setdefault(kind.value, {})[name] = value
    return found


def _described(answer: SystemAnswer) -> dict[str, Any]:
    verdict = answer.verdict
    found: dict[str, Any] = {
        "system": answer.system,
        "answer": verdict.answer,
        "why": verdict.why,
        "against": verdict.against,
        "because": answer.because,
    }
    for name, ratio in (("ratio", verdict.ratio), ("price_ratio", verdict.price)):
        if ratio is not None:
            found |= ratio.keys(name)
    return found
