"""The arms of questions about systems, played in the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.suite.question import BASE, Asked, Question, SuiteArm
from toolkit.bench.suite.variants import changed, router_of, variant
from toolkit.bench.suite.verdicts import SuiteVerdict, judge
from toolkit.contract.request_class import RequestClass
from toolkit.plan.arithmetic import LOOKED_AT, Arithmetic
from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import PlanError
from toolkit.plan.expert_layout import Lay
from toolkit.plan.placed_arms import SUBJECTS, PlacedArms, agreed
from toolkit.plan.placed_sentences import about
from toolkit.plan.trials import Trials
from toolkit.policies import follows_experts
from toolkit.simulate.costs.captured import Captured
from toolkit.simulate.costs.overlapped import Overlapped

if TYPE_CHECKING:
    from toolkit.plan.planner import Task
    from toolkit.settings.document import Document
    from toolkit.simulate.costs.base import CostModel

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
Played = tuple[str, str, float]
"""An arm's variant and name, and the share of the all-to-all that an overlap hides."""


class SystemPlayers:
    """Plays arms; the same one is never played twice. `placed`: what is known of those whose
    experts are placed or move."""

    def __init__(
        self,
        task: Task,
        document: Document,
        asked: Asked,
        capture: float,
        report: Callable[[str], None],
    ) -> None:
        self._task, self._document, self._asked = task, document, asked
        self._report = report
        self._seeds = range(1, task.seeds + 1)
        self._capture = capture
        self._trials: dict[tuple[bool, float], Trials] = {}
        self.placed = PlacedArms(document, asked, task.layouts, task.cost)

    def _trials_of(self, captures: bool, hidden: float) -> Trials:
        """Of arms whose prefill workers capture experts or do not, and of whose all-to-all so much
        is hidden."""
        task, key = self._task, (captures, hidden)
        if key not in self._trials:
            cost: CostModel = Captured(task.cost, self._capture) if captures else task.cost
            self._trials[key] = Trials(
                Overlapped(cost, hidden) if hidden else cost,
                *(task.requests, task.slo, task.budget, task.experts, self._report),
                in_flight=task.in_flight,
                layouts=task.layouts,
            )
        return self._trials[key]

    @property
    def simulations(self) -> int:
        return sum(each.done for each in self._trials.values())

    def plays(self, question: Question) -> set[Played]:
        """All that the question takes."""
        return {
            (arm.variant, arm.name, hidden)
            for share in self.placed.shares(question)
            for arm, hidden in self._arms(question, share)
        }

    def judged(self, question: Question) -> tuple[SuiteVerdict, str]:
        """The verdict, and why it is so by the costs. SimulateError, PlanError: it cannot be
        played."""
        stopped, found = self.placed.not_played(question), {}
        for share in self.placed.shares(question):
            played = {
                arm.name: self._rounds(question, arm, hidden)
                for arm, hidden in self._arms(question, share)
            }
            found[share] = judge(question, played, per_start=1, stopped=stopped)
        verdict = agreed(found)
        if question.system in SUBJECTS:
            return verdict, self._placed(question)
        shown = question.ours
        if question.system not in ABOUT_OURS:
            shown = next(arm for arm in question.others if arm.name == verdict.against)
        return verdict, self._there(question, shown).of(question.system)

    def _arms(self, question: Question, share: float) -> Iterator[tuple[SuiteArm, float]]:
        """Those that are played, and what an overlap hides of them."""
        stopped = self.placed.not_played(question)
        for arm in question.arms:
            if arm.variant not in stopped:
                yield arm, share if self.placed.overlaps(arm) else 0.0

    def _there(self, question: Question, arm: SuiteArm) -> Arithmetic:
        task = self._task
        return Arithmetic(
            task.cost,
            self._candidate(question, arm),
            list(itertools.islice(task.requests(0), LOOKED_AT)),
            self._played(question, arm),
            task.experts if task.layouts is None else task.layouts.of(self._first_lay),
        )

    @property
    def _first_lay(self) -> Lay:
        """Experts in their order."""
        return Candidate.of(self._document, self._task.given).lay

    def _placed(self, question: Question) -> str:
        """What moving or placing experts hangs on."""
        layouts = self._task.layouts
        assert layouts is not None
        lays = [self._lay(question, arm) for arm in question.arms]
        return about(question.system, self._in_order(question), layouts, lays)

    def _in_order(self, question: Question) -> Arithmetic:
        """Of the arm whose experts lie in their order and stay."""
        return self._there(question, question.others[0])

    def _lay(self, question: Question, arm: SuiteArm) -> Lay:
        return self.placed.lay(arm, lambda every: self._in_order(question).served(every))

    def _rounds(
        self, question: Question, arm: SuiteArm, hidden: float = 0.0
    ) -> dict[int, dict[str, Any]]:
        """By seed, under the names of the suite."""
        played = self._played(question, arm, hidden)
        return {
            seed: _as_metrics(figures) for seed, figures in zip(self._seeds, played, strict=True)
        }

    def _played(
        self, question: Question, arm: SuiteArm, hidden: float = 0.0
    ) -> Sequence[Mapping[str, Any]]:
        trials = self._trials_of(follows_experts(arm.policies["decode"]), hidden)
        return trials.all(self._candidate(question, arm), self._seeds)

    def _candidate(self, question: Question, arm: SuiteArm) -> Candidate:
        policies = {"dispatch": arm.policies["dispatch"], "decode_policy": arm.policies["decode"]}
        moves = question.system in SUBJECTS
        # Where experts lie is all that such arms change; the simulator has no flags for it.
        file = variant(self._document, self._asked, BASE if moves else arm.variant)
        if moves and follows_experts(arm.policies["decode"]):
            policies["profile"] = router_of(self._document)["profile"]
        found = Candidate.of(changed(file, {"router": policies}), self._task.given)
        if not moves or arm is question.others[0]:
            return found
        return self._laid(found, self._lay(question, arm))

    def _laid(self, candidate: Candidate, lay: Lay) -> Candidate:
        assert self._task.layouts is not None
        try:
            self._task.layouts.of(lay)
        except (ValueError, ImportError) as error:
            raise PlanError(f"{lay.kind} experts: {error}") from error
        return replace(candidate, lay=lay)


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
