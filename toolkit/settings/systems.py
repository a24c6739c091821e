"""Which of the toolkit's systems a deployment turns on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from toolkit.policies import make_policy
from toolkit.settings.flags import flag_of

if TYPE_CHECKING:
    from toolkit.policies.base import Policy
    from toolkit.settings.deployment import Deployment

System = Literal[
    "late dispatch",
    "first token from prefill",
    "expert locality",
    "level KV",
    "Gimbal balance",
    "shortest prompt first",
    "classes",
    "preempted prompts",
    "paused answers",
    "stages",
    "moves",
    "relocated experts",
    "speculative decoding",
    "policy in the DP controller",
]
SYSTEMS: tuple[System, ...] = get_args(System)
ALGORITHM = "speculative-algorithm"
"""Of a role's own `args`."""


def systems_of(deployment: Deployment) -> tuple[System, ...]:
    """Those that are on, in the order of `SYSTEMS`."""
    found = {*_of_router(deployment), *_of_roles(deployment)}
    return tuple(system for system in SYSTEMS if system in found)


def _of_router(deployment: Deployment) -> set[System]:
    router, split = deployment.router, deployment.mode == "pd"
    if router.kind != "toolkit":
        return set()
    decode = make_policy(router.decode_policy, side="decode")
    used = [decode, make_policy(router.prefill_policy, side="prefill")] if split else [decode]
    late = split and router.dispatch == "late"
    rebalance = router.rebalance
    moves = deployment.decode.stages is not None if rebalance is None else rebalance.on
    on: dict[System, bool] = {
        "late dispatch": late,
        "first token from prefill": late and router.first_token == "prefill",
        "expert locality": decode.needs.signature and router.profile is not None,
        "level KV": decode.needs.pool,
        "Gimbal balance": any(_words(policy) & {"gimbal"} for policy in used),
        "classes": router.classes is not None,
        "stages": split and deployment.decode.stages is not None,
        "moves": split and moves,
    }
    return {system for system, there in on.items() if there}


def _of_roles(deployment: Deployment) -> set[System]:
    split = deployment.mode == "pd"
    prefilling = deployment.prefill if split else deployment.worker
    roles = [deployment.prefill, deployment.decode] if split else [deployment.worker]
    ours = deployment.router.kind == "toolkit"
    on: dict[System, bool] = {
        "shortest prompt first": prefilling.waiting.order == "sjf",
        "preempted prompts": ours and prefilling.preempt is not None,
        "paused answers": ours and split and deployment.decode.preempt is not None,
        "relocated experts": any(role.relocate for role in roles),
        "speculative decoding": deployment.speculative is not None
        or any(ALGORITHM in map(flag_of, role.args) for role in roles),
        "policy in the DP controller": any(role.dp_policy is not None for role in roles),
    }
    return {system for system, there in on.items() if there}


def _words(policy: Policy) -> set[str]:
    return set(policy.name.replace("@", " ").replace("+", " ").split())
