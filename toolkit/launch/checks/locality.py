"""Whether a plan can route by experts (ELDR), and whether its profile is this model's."""

from pathlib import Path

from toolkit.contract.variables import DP_PROFILE_VARIABLE, RELOCATE_VARIABLE
from toolkit.launch.errors import Problem
from toolkit.launch.plan import Plan
from toolkit.launch.profile_needs import KEY, ProfileNeeds
from toolkit.launch.signature_flags import recording
from toolkit.policies import follows_experts

READ_WITH = ("tau", "refit_on_drift")


def locality(plan: Plan) -> list[Problem]:
    """Whether the plan can route by experts, and whether the profile is this model's."""
    problems = _policy(plan)
    if plan.locality is None:
        return [*problems, *_unread(plan)]
    if plan.mode != "pd":
        repair = f"use mode: pd, or remove {KEY}"
        return [*problems, Problem(KEY, "only prefill workers record signatures", repair)]
    reads = [*_readers(plan), *_choice(plan)]
    return [*problems, *reads, *_fit(plan, plan.locality), *recording(plan)]


def _policy(plan: Plan) -> list[Problem]:
    """What a `decode_policy` that follows experts needs."""
    config = plan.router_config
    name = str(config.get("decode_policy"))
    if not follows_experts(name):
        return []
    problems = []
    if plan.locality is None:
        what = f"{name} needs a profile: what prefill workers record, and what it is compared with"
        repair = (
            f"set {KEY} to embedded (the embedded model's), or to a folder of `toolkit profile`"
        )
        problems.append(Problem("router.decode_policy", what, repair))
    if plan.dispatch != "late":
        what = f"{name} needs what the prefill has learned, dispatch is {plan.dispatch}"
        repair = "use mode: pd with dispatch: late, or another decode_policy"
        problems.append(Problem("router.dispatch", what, repair))
    return problems


def _unread(plan: Plan) -> list[Problem]:
    """Keys that only policies with a profile read. A policy can be changed while the router runs,
    so these may stand beside any that there is; a profile cannot come later."""
    config = plan.router_config
    what = f"no policy can ever read it without {KEY}"
    repair = f"set {KEY}, or remove it"
    return [Problem(f"router.{key}", what, repair) for key in READ_WITH if key in config]


def _readers(plan: Plan) -> list[Problem]:
    """Signatures that nobody uses are no error, yet hardly meant."""
    if any(DP_PROFILE_VARIABLE in worker.env for worker in plan.workers):
        return []  # decode workers' own DP controllers do
    kind = plan.router.kind if plan.router else "none"
    if kind != "toolkit":
        what = f"prefill workers record signatures, router: {kind} does not read them"
    elif plan.dispatch != "late":
        what = f"prefill workers record signatures, too late for dispatch: {plan.dispatch}"
    else:
        return []
    return [Problem(KEY, what, f"remove {KEY}, or use our router with dispatch: late", fatal=False)]


def _choice(plan: Plan) -> list[Problem]:
    """Whether experts tell decode ranks apart. Those of one server that share them they do not,
    which is no error, since the policy goes by all else that it looks at."""
    decode = [w for w in plan.workers if w.role == "decode" and w.url]
    config = plan.router_config
    repair = "use a policy without it, or several servers behind our router"
    if any(DP_PROFILE_VARIABLE in w.env for w in decode):  # each server's own DP controller chooses
        where, k = "decode.dp_policy", decode[0].centroids
    elif follows_experts(str(config.get("decode_policy"))):
        where, k = "router.decode_policy", plan.decode_centroids
        if any(RELOCATE_VARIABLE in w.env for w in decode):
            return []  # they say where their experts lie
        repair = (
            "set decode.relocate, so that the router hears where experts lie, or else " + repair
        )
    else:
        return []
    if k > 1 or decode[0].dp == 1:
        return []
    what = (
        "the ranks of a server with dp_attention share their experts, so that by these none is a "
        "better place for a request than another: locality decides nothing"
    )
    return [Problem(where, what, repair, fatal=False)]


def _fit(plan: Plan, found: ProfileNeeds) -> list[Problem]:
    """The profile against the model and the number of decode workers."""
    from toolkit.fingerprint import model_fingerprint
    from toolkit.profile_folder.check import problems

    fingerprint = None
    if plan.model.weights_here:
        try:
            fingerprint = model_fingerprint(plan.model.path)
        except (OSError, ValueError) as error:
            what = f"the model cannot be compared with it: {error}"
            return [Problem(KEY, what, f"make {Path(plan.model.path)} readable")]
    wrong = problems(
        found.profile,
        fingerprint=fingerprint,
        layers=plan.model.moe_layers,
        experts=plan.model.experts,
        top_k=plan.model.top_k,
    )
    k = plan.decode_centroids
    if k > found.fitted:
        wrong.append(
            f"{k} decode workers need as many clusters, the profile has only {found.fitted} "
            "requests to fit them to: measure it with more prompts"
        )
    return [Problem(KEY, what) for what in wrong]
