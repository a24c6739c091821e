"""Two deployments that stand beside each other, asked the same in turns."""

from typing import Any

from tests.benchmarks.shared.eldr_rounds import DOMAINS, say, warm_up, workload
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.runner import BenchLoad, RunOutcome, new_session
from toolkit.bench.target import discover

OURS, THEIRS = "round_robin", "late:round_robin"
"""Both are the same policy, of which there is nothing to choose; the names tell the two apart."""


class Answers:
    """Of every round, what each deployment said."""

    def __init__(self) -> None:
        self.compared = self.different = 0
        self._said: dict[int, list[tuple[int, ...]]] = {}

    def keep(self, _arm: int, number: int, outcome: RunOutcome) -> None:
        said = [sample.output_ids for sample in outcome.samples]
        other = self._said.pop(number, None)
        if other is None:
            self._said[number] = said
            return
        self.compared += len(said)
        self.different += sum(a != b for a, b in zip(said, other, strict=True))


async def measure(ours: str, theirs: str, options: Any) -> tuple[dict[int, Comparison], Answers]:
    """Rounds of the project's prompts that the profile was not fitted to, the same for both, in
    balanced random order. `options`: `in_flight` numbers, `rounds` of each, `requests` of a round
    (three times those in flight at least), mean output `tokens`. By the number in flight."""
    found, answers = {}, Answers()
    async with new_session(600.0) as session:
        target, other = await discover(session, ours), await discover(session, theirs)
        for number, in_flight in enumerate(options.in_flight):
            requests = max(options.requests, 3 * in_flight)
            rounds = workload(number, options.rounds, requests, options.tokens, DOMAINS, "all")
            load = BenchLoad(concurrency=in_flight)
            if not number:
                for each in (target, other):
                    await warm_up(session, each, rounds[0], load)
            arms = [Arm.parse(OURS), Arm.parse(THEIRS)]
            found[in_flight] = await compare(
                *(session, target, rounds, load, arms, number),
                report=say,
                keep=answers.keep,
                elsewhere={THEIRS: other},
            )
    return found, answers
