"""Plays the arms of the suite: variant after variant and back again, the same rounds for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from toolkit.bench.compare import judged
from toolkit.bench.metrics import Slo
from toolkit.bench.runner import BenchLoad, new_session, play
from toolkit.bench.suite.question import BASE, Asked, Question, SuiteArm
from toolkit.bench.suite.traffic import SuiteLoad, rounds_of
from toolkit.bench.suite.variants import variant
from toolkit.bench.suite.verdicts import PER_START, SuiteVerdict, all_decided, judge, shown
from toolkit.bench.target import discover, flush_caches, get_json, set_policy, worker_urls
from toolkit.bench.workload import Workload, backwards

WARM = 2
Say = Callable[[str], None]


class Hosted(Protocol):
    """A deployment that is up."""

    @property
    def router_url(self) -> str: ...


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

    def verdicts(self, early: bool = False) -> list[SuiteVerdict]:
        """Of each question, by what was played so far. `early`: as long as more may follow."""
        found = []
        for question in self.asked.questions:
            own = {
                arm: rounds
                for (traffic, arm), rounds in self.played.items()
                if traffic == question.traffic
            }
            found.append(judge(question, own, early))
        return found

    def run(self, host: Hosts, say: Say) -> None:
        """Until all is decided, the time is over or the rounds are; Ctrl-C keeps what there is.

        BenchError: a variant did not start, or what it did is no result.
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
                    self._block(host, name, arms, numbers, say)
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
        for verdict in self.verdicts(early=True):
            question = verdict.question
            if verdict.answer == "undecided":
                for arm in question.arms:
                    if arm.variant == name:
                        found.setdefault((question.traffic, arm.name), (question, arm))
        return list(found.values())

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
        with host(file, None) as up:
            asyncio.run(self._play(up.router_url, arms, numbers))
        say(f"{name}: {monotonic() - began:.0f} s")

    async def _play(self, url: str, arms: list[tuple[Question, SuiteArm]], numbers: range) -> None:
        load = BenchLoad(concurrency=self.load.concurrency)
        async with new_session(load.timeout_s, self.key) as session:
            target = await discover(session, url)
            rounds = rounds_of(self.load, target)
            urls = worker_urls(await get_json(session, url + "/workers"), url)
            first = rounds["plain"][numbers[0]]
            warm = Workload("warm-up", tuple(map(backwards, first.items[:WARM])))
            await play(session, target, warm, load)
            for number in numbers:
                # Within a pair of rounds every arm once early and once late.
                order = arms if number % 2 == 0 else arms[::-1]
                for question, arm in order:
                    await set_policy(session, url, dict(arm.policies))
                    await flush_caches(session, urls)
                    workload = rounds[question.traffic][number]
                    outcome = await play(session, target, workload, load)
                    figures = judged(outcome, workload, f"{arm.name}, round {number + 1}", Slo())
                    key = question.traffic, arm.name
                    self.played.setdefault(key, {})[number] = _plain(figures)

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


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Without the long lists of single workers."""
    return {key: value for key, value in figures.items() if not isinstance(value, list)}
