"""`rebalance`: which running requests the router moves by itself, and how often it makes a pass
over all ranks."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from toolkit.decide.bounds import MoveBounds
from toolkit.policies.stages.moving import Knobs
from toolkit.policies.stages.qoe import Qoe
from toolkit.settings.section import Natural, Section

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
REFINE_S, REPLAN_S = 2.0, 5.0
"""As simulated in `tests.benchmarks.stages_follow`."""


def keys_of(rebalance: object) -> dict[str, Any] | None:
    """What a file's `router.rebalance` (None: it has none) says, or None: requests do not move."""
    if rebalance is None or rebalance is True:
        return {}
    return dict(rebalance) if isinstance(rebalance, Mapping) else None


def following(qoe: Qoe) -> dict[str, Any]:
    """Keys of `router.rebalance` by which stages follow the lengths that come; none where nobody
    knows what mixed lengths cost."""
    if not qoe.mixed:
        return {}
    return {"qoe": list(qoe.coefficients), "mixed": qoe.mixed}


class Rebalance(Section):
    """Moves between decode ranks (`toolkit.policies.stages.moving.Mover`): with stages requests
    that outgrew theirs and those of ranks above their stage's mean, else those of ranks above the
    mean of all; in either case those of ranks that are about to be out of KV.

    `qoe`, D_0 to D_4 of a profile (`toolkit.policies.stages.qoe`), weighs a move's gain against its
    price: what moves stalled their requests so far, at first `move_s`. Without it loads in KV
    tokens decide. Range refinement (`refine_s`) and other stages (`replan_s`) need it, and are on
    unless the file says otherwise where `mixed` says what mixed lengths cost: stages that follow
    the lengths that come were better than those that stand still (`stages_follow`, simulated).
    """

    on: bool = Field(default=True, description="`false`: stages without moves")
    every_s: Positive = Field(default=0.25, description="from one pass over all ranks to the next")
    soon_s: Positive = Field(default=0.02, description="to a pass after a move has ended")
    over: Positive = Field(
        default=0.25, description="share above its stage's mean from which a rank hands on"
    )
    band: Positive = Field(
        default=0.05,
        description="the same about the mean of all, above and below, where there are no stages",
    )
    at_once: int = Field(default=3, ge=1, le=3, description="moves of one rank at a time")
    reserve: Natural = Field(
        default=512,
        description="KV tokens that stay free at a target; a rank with fewer left hands on",
    )
    wait_limit: int = Field(
        default=4, ge=1, description="a request that asked in vain in so many passes goes first"
    )
    least: Natural = Field(
        default=0,
        description="requests with fewer tokens left (where known, else of fewer KV tokens) do not "
        "move for their load",
    )
    rest: Natural = Field(
        default=20, description="passes in which a moved request does not go back for its load"
    )
    horizon: int = Field(
        default=128,
        ge=1,
        description="output tokens over which a move is to pay, where nobody knows how many follow",
    )
    move_s: Share = Field(default=0.05, description="price of a move before any was made, seconds")
    refine_s: Share | None = Field(
        default=None,
        description="bounds follow the live lengths, so often; 0: they stand; default: "
        f"{REFINE_S:g} where `mixed` is known",
    )
    refine_weight: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.3, description="how much of the way a bound goes at a time"
    )
    replan_s: Share | None = Field(
        default=None,
        description="lengths and ranks of stages are planned anew for what decodes, so often; 0: "
        f"they stand; default: {REPLAN_S:g} where `mixed` is known",
    )
    qoe: tuple[float, ...] | None = Field(
        default=None, description="D_0 to D_4; default: the fit of `router.profile`, if it has one"
    )
    mixed: Share = Field(
        default=0.0, description="seconds a step takes longer by each KV token above the mean"
    )

    @field_validator("qoe")
    @classmethod
    def _plans_by_it(cls, qoe: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if qoe is not None:
            Qoe(qoe)
        return qoe

    @property
    def bounds(self) -> MoveBounds:
        """As the decider takes it."""
        return MoveBounds(
            knobs=self.knobs,
            every_s=self.every_s,
            soon_s=self.soon_s,
            price_s=self.move_s,
            qoe=self.model,
            refine_s=self._follows(self.refine_s, REFINE_S),
            refine_weight=self.refine_weight,
            replan_s=self._follows(self.replan_s, REPLAN_S),
        )

    def _follows(self, given: float | None, own: float) -> float:
        if given is not None:
            return given
        return own if self.qoe is not None and self.mixed > 0 else 0.0

    @property
    def knobs(self) -> Knobs:
        return Knobs(
            over=self.over,
            band=self.band,
            at_once=self.at_once,
            reserve=self.reserve,
            wait_limit=self.wait_limit,
            least=self.least,
            rest=self.rest,
            horizon=self.horizon,
        )

    @property
    def model(self) -> Qoe | None:
        return None if self.qoe is None else Qoe(self.qoe, self.mixed)
