"""Plays the arms of the suite: variant after variant and back again, the same rounds for all."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from toolkit.bench.errors import BenchError
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.suite.expert_questions import PlacedExperts
from toolkit.bench.suite.experts_moved import ExpertsMoved, moved
from toolkit.bench.suite.question import BASE, Asked, Question, SuiteArm
from toolkit.bench.suite.start import SuiteStart
from toolkit.bench.suite.traffic import SuiteLoad
from toolkit.bench.suite.variants import variant
from toolkit.bench.suite.verdicts import PER_START, SuiteVerdict, all_decided, judge, shown

REASON = re.compile(r"^\S*(Error|Exception)\b.*")
LONGEST = 200
"""Characters of a reason, where there is one line for it."""
Say = Callable[[str], None]


class Hosted(Protocol):
    """A deployment that is up."""

    @property
    def router_urls(self) -> Sequence[str]:
        """Requests go to all of them in turn."""
        ...


class Hosts(Protocol):
    """Starts a deployment file, and ends it on the way out (`toolkit.bench.hosted`); or has what
    runs already (`as_it_runs`)."""

    def __call__(self, path: Path, run_dir: Path | None) -> AbstractContextManager[Hosted]: ...


@dataclass(slots=True)
class Suite:
    """What was asked, and what was played: by kind of traffic and arm, the metrics of each round
    (by its number). `minutes`: no variant is started later."""

    document: dict[str, Any]
    asked: Asked
    load: SuiteLoad
    folder: Path
    """Where variants and results go."""
    minutes: float
    key: str | None = None
    """Of the router's admin, where it asks for one."""
    played: dict[tuple[str, str], dict[int, dict[str, Any]]] = field(default_factory=dict)
    starts: int = 0
    interrupted: bool = False
    stopped: dict[str, str] = field(default_factory=dict)
    """Variants that do not run here, and all that is known of why."""
    moved: list[ExpertsMoved] = field(default_factory=list)
    placed: PlacedExperts = field(default_factory=PlacedExperts)

    def verdicts(self, early: bool = False) -> list[SuiteVerdict]:
        """Of each question, by what was played so far. `early`: as long as more may follow."""
        found = []
        stopped = {name: reason(text) for name, text in self.stopped.items()}
        for question in self.asked.questions:
            own = {
                arm: rounds
                for (traffic, arm), rounds in self.played.items()
                if traffic == question.traffic
            }
            found.append(judge(question, own, early, stopped=stopped))
        return found

    def run(self, host: Hosts, say: Say) -> None:
        """Until all is decided, the time is over or the rounds are; Ctrl-C keeps what there is. A
        variant that does not start, or whose workers die, is a result of the questions about it.

        BenchError: it is the base, without which there is nothing to compare with.
        """
        began = monotonic()
        until = began + 60 * self.minutes
        try:
            for cycle, name, numbers in self._blocks():
                if monotonic() > until:
                    say(f"the {self.minutes:g} minutes are over")
                    return
                arms = self._wanted(name)
                if arms:
                    self._tried(host, name, arms, numbers, say)
                    self._keep()
                    say(self._so_far((monotonic() - began) / 60))
                if name == BASE and cycle and all_decided(self.verdicts(early=True)):
                    say("every question is decided")
                    return
        except KeyboardInterrupt:
            self.interrupted = True
            say("interrupted: what was measured so far counts")

    def _blocks(self) -> Iterator[tuple[int, str, range]]:
        """There and back: (cycle, variant, numbers of rounds). A drift of the machine that goes on
        over both ways is no arm's gain. Who is the last on the way there is started anew for the
        way back: a start is one sample (`verdicts`)."""
        names = [BASE, *(name for name in self.asked.variants if name != BASE)]
        for cycle in range(self.load.rounds // PER_START):
            for name in reversed(names) if cycle % 2 else names:
                yield cycle, name, range(cycle * PER_START, (cycle + 1) * PER_START)

    def _wanted(self, name: str) -> list[tuple[Question, SuiteArm]]:
        """Arms of the variant that an open question needs, each once for its traffic."""
        found: dict[tuple[str, str], tuple[Question, SuiteArm]] = {}
        for verdict in () if name in self.stopped else self.verdicts(early=True):
            question = verdict.question
            if not verdict.settled:
                for arm in question.arms:
                    if arm.variant == name:
                        found.setdefault((question.traffic, arm.name), (question, arm))
        return list(found.values())

    def _tried(
        self,
        host: Hosts,
        name: str,
        arms: list[tuple[Question, SuiteArm]],
        numbers: range,
        say: Say,
    ) -> None:
        """The block, or why there is none."""
        try:
            self._block(host, name, arms, numbers, say)
        except BenchError as error:
            if name == BASE:
                raise
            self.stopped[name] = str(error)
            say(f"{name} does not run here: {reason(str(error))}")

    def _block(
        self,
        host: Hosts,
        name: str,
        arms: list[tuple[Question, SuiteArm]],
        numbers: range,
        say: Say,
    ) -> None:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(variant(self.document, self.asked, name), indent=1))
        say(f"starting {name}: rounds {numbers[0] + 1} and {numbers[-1] + 1} of {len(arms)} arms")
        self.starts += 1
        began = monotonic()
        moving = self.asked.moving.get(name)
        run_dir = None if moving is None else self.folder.resolve() / f"run-{self.starts}"
        with host(file, run_dir) as up, ExitStack() as beside:
            seen = None
            if moving is not None and run_dir is not None:
                entered = moved(name, moving, run_dir, self.load.concurrency)
                seen = beside.enter_context(entered)
            asyncio.run(self._play(up.router_urls, arms, numbers))
        if seen is not None:
            self.moved.append(seen)
        say(f"{name}: {monotonic() - began:.0f} s")

    async def _play(
        self, urls: Sequence[str], arms: list[tuple[Question, SuiteArm]], numbers: range
    ) -> None:
        """Arms of questions that are not about moving experts come first."""
        async with new_session(BenchLoad().timeout_s, self.key) as session:
            start = await SuiteStart.at(session, urls, self.load, numbers)
            for steps in sorted({question.settle for question, _ in arms}):
                own = [each for each in arms if each[0].settle == steps]
                await start.settle(own[0][1], steps)
                for number in numbers:
                    # Within a pair of rounds every arm once early and once late.
                    for question, arm in own if number % 2 == 0 else own[::-1]:
                        key = question.traffic, arm.name
                        figures = await start.round(arm, question.traffic, number)
                        self.played.setdefault(key, {})[number] = figures

    def _so_far(self, minutes: float) -> str:
        """One line: the time, and how the questions stand."""
        found = self.verdicts(early=True)
        words = [
            f"{verdict.question.system} {verdict.answer}"
            + ("" if verdict.ratio is None else f" {shown(verdict.ratio)}")
            for verdict in found
        ]
        return f"[{minutes:.0f} of {self.minutes:g} minutes] {'; '.join(words)}"

    def _keep(self) -> None:
        """What there is, for whoever looks after a crash."""
        rounds = [
            {"traffic": traffic, "arm": arm, "rounds": played}
            for (traffic, arm), played in self.played.items()
        ]
        (self.folder / "suite.json").write_text(json.dumps(rounds, indent=1))


def reason(text: str) -> str:
    """A line of it: the last error that is named, else the last line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    named = [line for line in lines if REASON.match(line)]
    return (named or lines or ["nobody knows why"])[-1][:LONGEST]
