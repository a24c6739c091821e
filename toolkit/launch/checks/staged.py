"""What stages and moves need that only the profile can give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.plan import Plan

KEY = "router.rebalance"


def staged(plan: Plan) -> list[Problem]:
    """Bounds that are to be refined without a QoE fit or without stages; a fit of which no batch
    can be judged."""
    from toolkit.policies.stages.qoe import Qoe

    config = (plan.router.config if plan.router else None) or {}
    given = config.get("rebalance")
    if given is None:
        return []
    problems = []
    if given.get("refine_s") and "stages" not in config:
        mend = "set decode.stages, or remove it"
        problems.append(Problem(f"{KEY}.refine_s", "there are no stages to refine", mend))
    qoe = given.get("qoe")
    if qoe is None and given.get("refine_s"):
        what = "bounds are found by a QoE fit, and there is none"
        mend = "set router.profile to a profile that has one, or give qoe: [D0, D1, D2, D3, D4]"
        problems.append(Problem(f"{KEY}.refine_s", what, mend))
    if qoe is not None:
        try:
            Qoe(tuple(qoe))
        except ValueError as error:
            problems.append(Problem(f"{KEY}.qoe", str(error)))
    return problems
