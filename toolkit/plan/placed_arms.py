"""Arms of the suite whose experts are placed or move, as the simulator plays them.

Where experts and requests can be laid together, by nodes (`toolkit.plan.placing.why_not_nodes`),
that is an arm of *expert placement*, too: it is what keeps tokens on their node.

Two-batch overlap is not simulated: nobody knows how much of the all-to-all it hides. So arms with
it are played as if it hid a share of `SHARES`, the same for all of them and at no price, and an
answer is one only if it is the same for each share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.bench.suite.expert_questions import (
    BY_AFFINITY,
    BY_LOAD,
    LOCATION,
    OVERLAP,
    PlacedExperts,
)
from toolkit.bench.suite.question import BASE, Asked, Question, Subject, SuiteArm
from toolkit.bench.suite.variants import role_of
from toolkit.bench.suite.verdicts import SuiteVerdict
from toolkit.placement.online import RelocationSettings
from toolkit.plan.candidate import Candidate
from toolkit.plan.expert_layout import LINEAR, NODES, REDUNDANT, Lay, Layouts
from toolkit.plan.placing import LOCAL, why_not_nodes
from toolkit.settings.document import Document
from toolkit.settings.flags import flag_of
from toolkit.simulate.costs import links_of
from toolkit.simulate.costs.base import CostModel

SUBJECTS: tuple[Subject, ...] = ("relocated experts", "expert placement")
SHARES = (0.0, 0.5, 1.0)
"""Of the all-to-all, that an overlap hides."""
ANY_PLACEMENT = PlacedExperts({kind: kind for kind in (BY_LOAD, BY_AFFINITY)})
"""In place of files: the kinds that would be in them."""
NOT_SENT = (
    "two-batch overlap is not simulated: --cost has no links, or the ranks of a server do not send "
    "each other tokens (dp_attention), so nobody knows what it could hide"
)


@dataclass(frozen=True)
class PlacedArms:
    """Of the questions about `document`, by `layouts` (None: nobody says where experts may lie)."""

    document: Document
    asked: Asked
    layouts: Layouts | None
    cost: CostModel

    def why_not(self, question: Question) -> str:
        """Why the simulator cannot be asked; empty where it can."""
        if question.system not in SUBJECTS:
            return ""
        if self.layouts is None:
            return "nobody says where experts may lie: --placement search, with --experts PROFILE"
        if role_of(self.document, "decode").get("expert_placement"):
            return "decode.expert_placement is not simulated: leave it out to ask"
        if question.system == "relocated experts" and self.layouts.moving is None:
            return "against SGLang's EPLB it hangs on what moving takes: say --move-gb-s"
        if question.system == "relocated experts" and self.layouts.expert_bytes is None:
            return "nobody knows what an expert weighs: the model's config.json is not here"
        if self._flags(BASE).get(OVERLAP) and not self._sends:
            return NOT_SENT
        return ""

    def could_run(self, question: Question, own: Candidate) -> Question:
        """With the arms that the suite does not have, and without those that SGLang refuses to
        start: an overlap of nothing. `own`: the file's."""
        if question.system not in SUBJECTS:
            return question
        if question.system == "expert placement" and not self._why_not_nodes(own):
            question = replace(question, also=(*question.also, *self._with_requests(question)))
        decode = role_of(self.document, "decode")
        scattered = self._flags(BASE).get("moe-a2a-backend") or "none"
        if decode.get("dp_attention") or scattered != "none":
            return question
        others = tuple(arm for arm in question.others if not self.overlaps(arm))
        also = tuple(arm for arm in question.also if not self.overlaps(arm))
        return replace(question, others=others, also=also)

    def _why_not_nodes(self, own: Candidate) -> str:
        assert self.layouts is not None
        return why_not_nodes(own, self.layouts)

    def _with_requests(self, question: Question) -> Iterator[SuiteArm]:
        """Experts by nodes and requests sent to them, once for each arm with the system."""
        for arm in question.with_it:
            changes = self.asked.variants[arm.variant]["decode"]["args"]
            name = arm.name.replace("placed", "laid with requests", 1)
            args = {**changes, LOCATION: NODES}
            self.asked.variants[name] = {"decode": {"args": args}}
            yield SuiteArm(name, name, {**arm.policies, "decode": LOCAL})

    def lay(self, arm: SuiteArm, served: Callable[[int], int]) -> Lay:
        """Where its experts lie; `served`: requests that a server answers in so many decode
        steps."""
        flags, moving = self._flags(arm.variant), self.asked.moving.get(arm.variant)
        redundant = int(flags.get(REDUNDANT) or 0)
        if moving is None:
            return Lay(str(flags.get(LOCATION) or LINEAR), redundant)
        kind = RelocationSettings().kind if moving.relocates else BY_LOAD
        seen = max(1, served(moving.steps))
        return Lay(kind, redundant, moving.steps, seen, not moving.relocates)

    def overlaps(self, arm: SuiteArm) -> bool:
        """Whether halves of its batches overlap."""
        return bool(self._flags(arm.variant).get(OVERLAP))

    def shares(self, question: Question) -> Sequence[float]:
        """That an overlap may hide: of questions without one 0 alone."""
        asked = question.system in SUBJECTS and any(map(self.overlaps, question.arms))
        return SHARES if asked and self._sends else SHARES[:1]

    def not_played(self, question: Question) -> dict[str, str]:
        """By variant, why it is not simulated."""
        if question.system not in SUBJECTS or self._sends:
            return {}
        return {arm.variant: NOT_SENT for arm in question.arms if self.overlaps(arm)}

    @property
    def _sends(self) -> bool:
        """Whether the simulator knows the all-to-all."""
        decode = role_of(self.document, "decode")
        ranks = int(decode.get("dp") or 1) if decode.get("dp_attention") else 1
        return links_of(self.cost) is not None and ranks > 1

    def _flags(self, name: str) -> dict[str, Any]:
        """SGLang's flags of a variant's decode role."""
        found: dict[str, Any] = {}
        changes: Mapping[str, Any] = {} if name == BASE else self.asked.variants.get(name, {})
        for role in (role_of(self.document, "decode"), changes.get("decode") or {}):
            found |= {flag_of(key): value for key, value in (role.get("args") or {}).items()}
        return found


def agreed(found: Mapping[float, SuiteVerdict]) -> SuiteVerdict:
    """Of the answers by the share that an overlap hides, the one that gains least; undecided where
    they differ."""
    said = "; ".join(
        f"if overlap hides {100 * share:.0f} % of what is sent: {each.why}"
        for share, each in found.items()
    )
    least = max(found.values(), key=lambda each: each.ratio.value if each.ratio else 0.0)
    if len(found) == 1:
        return least
    same = len({each.answer for each in found.values()}) == 1
    return replace(least, answer=least.answer if same else "undecided", why=said)
