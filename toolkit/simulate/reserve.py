"""How many tokens SGLang expects of answers that run, when it lets one more request in."""

from collections.abc import Iterable
from dataclasses import dataclass

CLIP = 4096
"""Tokens of an answer that are looked ahead at most (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
FIRST, LEAST, DECAY_STEPS = 0.7, 0.14, 600
"""SGLANG_INIT_NEW_TOKEN_RATIO, its share that is always kept, steps until there."""
RETRACT_STEPS = 20
"""SGLANG_RETRACT_DECODE_STEPS: what is kept free after a retraction, in steps."""


@dataclass
class NewTokenRatio:
    """The share of what running answers may still say that is kept free for them.

    It begins at `first` and falls to LEAST of that in DECAY_STEPS decode steps without retraction;
    a retraction sets it to what was needed: (said + 20 steps of each) / (asked for + 1).
    Source: SGLang 0.5.21, `NewTokenRatioTracker` and `PrefillAdder`; `first` is 0.7 times
    `--schedule-conservativeness`, 1 at most.
    """

    first: float = FIRST

    def __post_init__(self) -> None:
        self.first = min(self.first, 1.0)
        self.current = self.first

    def stepped(self, steps: int) -> None:
        """So many decode steps were taken."""
        fall = self.first * (1 - LEAST) / DECAY_STEPS
        self.current = max(self.current - fall * steps, self.first * LEAST)

    def retracted(self, answers: Iterable[tuple[int, int]]) -> None:
        """Those that were left in the batch: (tokens said, tokens asked for) of each."""
        pairs = list(answers)
        needed = sum(said for said, _ in pairs) + RETRACT_STEPS * len(pairs)
        self.current = min(1.0, needed / (sum(asked for _, asked in pairs) + 1))

    def reserved(self, left: Iterable[int]) -> float:
        """KV tokens that are kept for answers that may still say so many tokens each."""
        return self.current * sum(min(each, CLIP) for each in left)
