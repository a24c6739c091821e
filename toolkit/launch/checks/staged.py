"""What stages and moves need that only the profile can give."""

from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan

KEY = "router.rebalance"
GIVE_A_FIT = "set router.profile to a profile that has one, or give qoe: [D0, D1, D2, D3, D4]"


def staged(plan: Plan) -> list[Problem]:
    """Bounds that are to be refined without a QoE fit or without stages; a profile's fit by which
    no batch can be judged, which is said."""
    config = plan.router_config
    given = config.get("rebalance")
    if given is None:
        return []
    problems = []
    follow = [name for name in ("refine_s", "replan_s") if given.get(name)]
    if "stages" not in config:
        repair = "set decode.stages, or remove it"
        for name in follow:
            problems.append(Problem(f"{KEY}.{name}", "there are no stages to refine", repair))
    if given.get("qoe") is not None:
        return problems
    why = _unusable(plan)
    for name in follow:
        what = f"bounds are found by a QoE fit, and there is none{why and f': {why}'}"
        problems.append(Problem(f"{KEY}.{name}", what, GIVE_A_FIT))
    if given.get("mixed") and not follow:
        what = "it goes with a QoE fit, and there is none: stages stand still"
        problems.append(Problem(f"{KEY}.mixed", what, GIVE_A_FIT, fatal=False))
    if why and not follow:
        what = f"moves are weighed by KV tokens alone: {why}"
        problems.append(Problem("router.profile", what, "leave it so", fatal=False))
    return problems


def _unusable(plan: Plan) -> str:
    """Why the fit of the plan's profile cannot be used; empty where there is no profile, or no
    fit."""
    from toolkit.policies.stages.qoe import Qoe

    latency = plan.locality.profile.latency if plan.locality else None
    if latency is None or latency.qoe is None:
        return ""
    try:
        Qoe.of_profile(latency)
    except ValueError as error:
        return str(error)
    return ""
