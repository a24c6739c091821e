"""A question of the suite: its arms, and what each changes of the deployment file. Pure.

An arm is a variant of the file (which takes a start of its own) and policies that the running
router is switched to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolkit.settings.systems import System

Changes = Mapping[str, Any]
"""Of a deployment file: a mapping changes the keys that it has, None takes one away."""
Traffic = Literal["plain", "classes"]
Subject = System | Literal["expert placement"]
"""What is asked about: a system, or SGLang's own start with experts placed by our profile."""
BASE = "base"


@dataclass(frozen=True, slots=True)
class SuiteMetric:
    """A figure of a round. `klass`: of that class's requests alone."""

    key: str
    title: str
    klass: str = ""
    lower_is_better: bool = True


E2E = SuiteMetric("mean_e2e_latency_ms", "mean time of a whole answer")
TPOT = SuiteMetric("mean_tpot_ms", "mean time a token")
THROUGHPUT = SuiteMetric("output_throughput", "tokens a second", lower_is_better=False)
LS_TTFT = SuiteMetric("mean_ttft_ms", "latency-sensitive TTFT", "latency_sensitive")
BE_E2E = SuiteMetric("mean_e2e_latency_ms", "time of best-effort answers", "best_effort")
TTFT = SuiteMetric("mean_ttft_ms", "TTFT")
GAP = SuiteMetric("p99_longest_gap_ms", "longest gap of an answer (p99)")


@dataclass(frozen=True, slots=True)
class SuiteArm:
    """`policies`: the body of `POST /admin/policy`."""

    name: str
    variant: str
    policies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """Does the system pay? `metric` decides; `price` is shown beside it. `on`: what the deployment
    file says with it; `off`: without; but for its decode policy, which several of them have a say
    in (`written.chosen`).

    `also`: the system together with an alternative, where both go together. `takes_best`: where it
    is off, the file gets what the best alternative changes, if that beats the first of them, the
    plainest. `beside`: what has to run beside a
    deployment with it. `settle`: decode steps of a start before a round counts, on every arm alike.
    """

    system: Subject
    ours: SuiteArm
    others: tuple[SuiteArm, ...]
    metric: SuiteMetric
    price: SuiteMetric
    on: Changes
    off: Changes
    traffic: Traffic = "plain"
    also: tuple[SuiteArm, ...] = ()
    takes_best: bool = False
    beside: str = ""
    settle: int = 0

    @property
    def with_it(self) -> tuple[SuiteArm, ...]:
        """Arms that have the system."""
        return (self.ours, *self.also)

    @property
    def arms(self) -> tuple[SuiteArm, ...]:
        return (*self.with_it, *self.others)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A system about which this file lets one ask nothing."""

    system: Subject
    why: str


@dataclass(frozen=True, slots=True)
class MovingExperts:
    """Of a variant whose experts move while it serves. `steps`: decode steps between two looks at
    the load. `relocates`: `toolkit relocate` moves them, which runs beside it; else SGLang does."""

    steps: int
    relocates: bool


@dataclass(slots=True)
class Asked:
    """`variants`: by name, what each changes of the file; `moving`: those whose experts move."""

    variants: dict[str, Changes] = field(default_factory=dict)
    moving: dict[str, MovingExperts] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def only(self, subjects: Sequence[str]) -> None:
        """Ask about these alone; all where none is named.

        ValueError: one cannot be asked about; the message says why.
        """
        if not subjects:
            return
        why: dict[str, str] = {each.system: each.why for each in self.left_out}
        known = [question.system for question in self.questions]
        for name in subjects:
            if name not in known:
                told = why.get(name, f"no such question: {', '.join(known)} can be asked")
                raise ValueError(f"{name}: {told}")
        self.questions = [each for each in self.questions if each.system in subjects]
