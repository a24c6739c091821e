"""Which settings are best: the split first, then policies, then every knob of the best ones."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.errors import PlanError, Spent
from toolkit.plan.knob import Knob
from toolkit.plan.objective import better, rank
from toolkit.plan.split import Split, nearest, split_of, with_split
from toolkit.plan.trials import Trials
from toolkit.policies import follows_experts
from toolkit.settings.document import Document
from toolkit.simulate.errors import SimulateError

ARMS = 2
"""Policies whose knobs are tried."""
COARSE = 7
"""Splits that are looked at first where there are more."""
STEPS = 3
"""Other values of a knob that are tried from where it stands."""
PASSES = 2
"""Times all knobs are gone through, as long as one still moves."""


@dataclass(frozen=True)
class Search:
    """`trials` on the first so many requests of seed 0; `given` makes documents candidates."""

    trials: Trials
    given: Given
    first: int

    def candidate(self, document: Document) -> Candidate | None:
        """None where the sizes do not go together (dp that does not divide, fewer requests in the
        profile than centroids, experts that cannot be laid so)."""
        layouts = self.trials.layouts
        try:
            found = Candidate.of(document, self.given)
            if layouts is not None:
                layouts.of(found.lay)
        except (PlanError, SimulateError, ValueError):
            return None
        experts = self.trials.experts
        local = follows_experts(found.fleet.router.decode_policy)
        return None if local and len(experts or ()) < found.fleet.centroids else found

    def rank(self, candidate: Candidate) -> tuple[int, float]:
        return self.trials.rank(candidate, self.first)

    def split(self, document: Document, splits: Sequence[Split]) -> Document:
        """The file with the best split: all of them, or where there are many some spread over them
        and then ever nearer ones around the best."""
        known: dict[int, tuple[int, float]] = {}
        tried = {-1, len(splits)}  # beyond the ends there is nothing

        def best() -> int:
            return min(known, key=lambda place: (known[place], place))

        def look(places: Iterable[int]) -> None:
            for place in places:
                if place in range(len(splits)) and place not in tried:
                    tried.add(place)
                    found = self.candidate(with_split(document, splits[place]))
                    if found is not None:
                        known[place] = self.rank(found)

        start = splits.index(nearest(tuple(splits), split_of(document)))
        step = max(1, -(-len(splits) // COARSE))
        with suppress(Spent):
            look([start])
            look(range(0, len(splits), step))
            while known and (step > 1 or {best() - 1, best() + 1} - tried):
                step = max(1, step // 2)
                look([best() - step, best() + step])
        return with_split(document, splits[best() if known else start])

    def values(self, document: Document, knob: Knob) -> list[Document]:
        """The file with each value of a knob, the best first; those that were looked at."""
        ranked: list[tuple[tuple[int, float], int, Document]] = []
        with suppress(Spent):
            for number, value in enumerate(knob.values):
                changed = knob.write(document, value)
                found = self.candidate(changed)
                if found is not None:
                    ranked.append((self.rank(found), number, changed))
        return [changed for *_, changed in sorted(ranked, key=lambda each: each[:2])]

    def descend(self, document: Document, knobs: Sequence[Knob]) -> Document:
        """One knob after the other to where it is better, until none moves."""
        with suppress(Spent):
            start = self.candidate(document)
            assert start is not None
            reached = self.rank(start)
            for _ in range(PASSES):
                before = reached
                for knob in knobs:
                    document, reached = self._along(document, knob, reached)
                if reached == before:
                    break
        return document

    def _along(
        self, document: Document, knob: Knob, reached: tuple[int, float]
    ) -> tuple[Document, tuple[int, float]]:
        if not knob.applies(document):
            return document, reached
        best = document
        for value in knob.others(document, STEPS):
            changed = knob.write(document, value)
            found = self.candidate(changed)
            if found is None:
                continue
            try:
                now = self.rank(found)
            except Spent:
                break
            if better(now, reached):
                best, reached = changed, now
        return best, reached

    def arms(self, start: Document, knobs: Sequence[Knob]) -> list[Document]:
        """The files to choose between: the best policies, each with its knobs turned."""
        by_name = {knob.name: knob for knob in knobs}
        split = by_name.get("split")
        if split is not None:
            start = self.split(start, split.values)
        made = self.values(start, by_name["decode policy"])[:ARMS]
        others = [knob for knob in knobs if knob.name != "decode policy"]
        return [self.descend(document, others) for document in made] or [start]


def choose(
    trials: Trials, candidates: Sequence[Candidate], seeds: Sequence[int]
) -> tuple[Candidate, list[dict[str, Any]]]:
    """The best of some on every request of the seeds; the first ones where it makes no difference.

    Spent: the first of them could not be played.
    """
    best, figures = candidates[0], trials.all(candidates[0], seeds)
    for each in candidates[1:]:
        try:
            found = trials.all(each, seeds)
        except Spent:
            break
        if better(rank(found, trials.slo), rank(figures, trials.slo)):
            best, figures = each, found
    return best, figures
