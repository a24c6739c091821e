"""Which systems can pay here: the questions of `toolkit bench suite`, answered by the simulator.

The same systems against the same alternatives, judged by the same rule; a sample is a seed of the
traffic in place of a start of workers. Beside each answer stands what it hangs on, by the costs
(`toolkit.plan.arithmetic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.suite.question import E2E, Question, Subject
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.verdicts import SuiteVerdict
from toolkit.contract.request_class import RequestClass
from toolkit.launch.errors import LaunchError
from toolkit.launch.model import read_model
from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import PlanError
from toolkit.plan.placed_arms import ANY_PLACEMENT
from toolkit.plan.stages import OFF, stager, staging, why_not
from toolkit.plan.system_players import SystemPlayers
from toolkit.plan.trials import Trials
from toolkit.settings.document import Document, normal
from toolkit.simulate.errors import SimulateError

if TYPE_CHECKING:
    from toolkit.plan.planner import Task

CHUNKS = (256, 512, 1024, 2048, 4096)
"""Of best-effort prompts where nothing stops between layers: the best is the alternative."""


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
    task: Task,
    capture: float,
    report: Callable[[str], None] = lambda text: None,
    subjects: Sequence[Subject] = (),
) -> SystemsPlanned:
    """All that can be asked of the task's deployment, or these subjects alone. `capture`: the share
    by which a prefill takes longer where its experts are captured.

    Raises:
        PlanError: nothing can be asked, or the simulations of the budget are too few.
        SimulateError: the deployment is not simulated.
    """
    document, why_no_stages = _staged(normal(task.document), task)
    try:
        asked = questions_for(document, CHUNKS, ANY_PLACEMENT)
        asked.only(subjects)
    except ValueError as error:
        raise PlanError(str(error)) from error
    own = Candidate.of(document, task.given)
    players = SystemPlayers(task, document, asked, capture, report)
    answers: list[SystemAnswer] = []
    left = [
        (each.system, why_no_stages if each.system == "stages" and why_no_stages else each.why)
        for each in asked.left_out
        if not subjects or each.system in subjects
    ]
    played: list[Question] = []
    for question in asked.questions:
        if question.system == "expert locality" and _is_dense(document, task):
            dense = SuiteVerdict(question, "off", "the model has no experts")
            answers.append(SystemAnswer(dense, ""))
        elif why := _why_not(question, task) or players.placed.why_not(question):
            left.append((question.system, why))
        else:
            question = players.placed.could_run(question, own)
            played.append(_in_open_loop(question) if task.in_flight is None else question)
    least = task.seeds * len(set().union(*map(players.plays, played)))
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
