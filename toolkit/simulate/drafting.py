"""Speculative decoding as the simulator has it: steps that give a request several tokens."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

PARTS = 256
"""Of a token, in which `accepted` is counted: sums of such numbers are exact."""


class Drafting(BaseModel):
    """A draft proposes tokens one after the other, in `passes` of its own; the model verifies
    `verified` of each request in one step, which gives it `accepted` of them.

    Every step gives every request the mean, rounded to a 256th of a token; in fact texts differ,
    and so do steps. `share`: of a step's time, what one pass of the draft over as many tokens
    takes; None: the costs are of steps with this draft already.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    accepted: Annotated[float, Field(ge=1)]
    verified: Annotated[int, Field(ge=2)]
    passes: Annotated[int, Field(ge=1)]
    share: Annotated[float | None, Field(ge=0)] = None

    @field_validator("accepted")
    @classmethod
    def _exact(cls, value: float) -> float:
        return round(value * PARTS) / PARTS

    @property
    def held(self) -> int:
        """KV tokens that a running request holds beyond its own. SGLang's
        `get_alloc_reserve_per_decode`, for a chain."""
        return 2 * self.verified
