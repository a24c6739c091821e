"""What a field means for a request whose tokens do not all come from one worker.

Prefill and decode may be two workers, and a stream may go on at a third one (`patches.pd.resume`).
Each field's row says what becomes of it then, so that nobody has to keep lists of names beside the
table. Streams that nothing here forbids begin with their prefill worker's token
(`toolkit.router.first_token`), survive their worker (`toolkit.router.resumable`), and are answered
by a prefill worker alone where they are for one token (`toolkit.router.one_token`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Condition = Literal["", "the temperature is 0", "tool_choice is none"]


@dataclass(frozen=True, slots=True)
class Handover:
    """Whether a request that asks for something with a field can pass from worker to worker.

    `why` is the reason for all three answers, as a part of a sentence. `first_token`: the prefill
    worker's first token may go to the client. `resumable`: another worker can go on with the
    stream. `prefill_only`: a prefill worker alone answers a request for one token in full.
    `unless`: where that is so, the field forbids nothing.

    ValueError: a first token may go out, although no other worker could go on behind it.
    """

    why: str
    first_token: bool = True
    resumable: bool = True
    prefill_only: bool = True
    unless: Condition = ""

    def __post_init__(self) -> None:
        if self.first_token and not self.resumable:
            raise ValueError(f"a first token goes out, and no worker could go on: {self.why}")

    @property
    def alike(self) -> bool:
        """Whether a field forbids nothing."""
        return self.first_token and self.resumable and self.prefill_only


ALIKE = Handover("every worker gets it, and does the same with it")
GUIDED = Handover("each worker's grammar takes in the tokens that were there before")
TEXT = Handover("every worker makes the same text of the same tokens")
OF_LOGPROBS = Handover("it acts with log probabilities only, and these have rows of their own")
OF_TOOLS = Handover("it acts with `tools` only, and these have a row of their own")

LOGPROBS = Handover(
    "those of the first tokens stay with their worker", first_token=False, resumable=False
)
INSIDE_MODEL = Handover(
    "those of the first tokens stay with their worker, and only decode is known to tell them",
    first_token=False,
    resumable=False,
    prefill_only=False,
)
SEEDED = Handover(
    "the random state that its seed began stays with its worker",
    first_token=False,
    resumable=False,
    unless="the temperature is 0",
)
TOOLS = Handover(
    "what a parser makes of a call can depend on how its text comes in pieces",
    first_token=False,
    unless="tool_choice is none",
)
PROCESSOR = Handover(
    "a logit processor has a state of its own, which stays with its worker",
    first_token=False,
    resumable=False,
)
PARAMETERS = Handover("a logit processor may read it for prefill's token", first_token=False)
BUDGET = Handover(
    "nobody has tried it with prefill's token; its grammar counts the tokens that it is resumed "
    "with",
    first_token=False,
)
PATTERN = Handover("only decode knows where a pattern ends", first_token=False)
BEAMS = Handover(
    "a beam's token may be dropped, and the beams stay with their worker",
    first_token=False,
    resumable=False,
    prefill_only=False,
)
MARKED = Handover(
    "which contexts carry the mark already stays with their worker",
    first_token=False,
    resumable=False,
    prefill_only=False,
)
UNTRIED = Handover("nobody has tried it with prefill's token", first_token=False)
NO_TEXT = Handover(
    "another worker would not know the positions of what is no text",
    first_token=False,
    resumable=False,
)
UNJUDGED = Handover("nobody has judged it", first_token=False, resumable=False, prefill_only=False)
"""Of a row that says nothing: the safe answers. A test refuses it for what clients may send."""
