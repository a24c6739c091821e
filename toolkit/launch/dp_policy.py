"""`dp_policy` of a role: how SGLang's own DP controller chooses the rank of a request.

What `--load-balance-method` may name: SGLang's methods, and our policies, which the worker puts in
their place (`patches.dp_method`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.launch.errors import Problem

if TYPE_CHECKING:
    from toolkit.launch.deployment import Deployment, Role

FLAG = "load-balance-method"
SGLANGS = ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens")
"""SGLang's own; a policy of ours of the same name is what it is there (round_robin)."""
PROFILE_VARIABLE = "TOOLKIT_DP_PROFILE"
"""Names the profile by which a decode worker's DP controller reads signatures."""


def by_signature(name: str | None) -> bool:
    """Whether a DP controller can use it on the decode side only, and only with a profile."""
    from toolkit.policies import follows_experts

    return follows_experts(name or "")


def check_method(name: str, side: str | None = None, profile: bool = False) -> None:
    """Return when a DP controller of this side can use it; None is a plain server, which may have
    the policies of either. `profile`: it has one.

    ValueError: one sentence that says what is wrong and what is known.
    """
    if name in SGLANGS:
        return
    from toolkit.policies import check_policy

    base = name.partition("@")[0]
    if base == "label_oracle":
        raise ValueError(
            f"{name!r} needs the requests' labels, which SGLang's DP controller does not see: use "
            "the toolkit's router for it"
        )
    if by_signature(name) and not profile:
        raise ValueError(
            f"{name!r} needs a profile, to read which experts the prompts used: set router.profile"
            f" ({PROFILE_VARIABLE} for a worker by itself)"
        )
    try:
        check_policy(name, side)
    except ValueError as error:
        raise ValueError(f"{error}; and SGLang's own: {', '.join(SGLANGS)}") from error


def check_roles(deployment: Deployment) -> None:
    """Whether the DP policies of a deployment are known and will be asked. ValueError: why not."""
    for name, role in deployment.roles.items():
        if role.dp_policy is None:
            continue
        if deployment.router.kind == "toolkit":
            raise ValueError(
                f"{name}.dp_policy: {role.dp_policy} would never be asked, as router: toolkit "
                "names the DP rank of every request: set router.prefill_policy and "
                "router.decode_policy, or use router: sglang or none"
            )
        try:
            side = None if name == "worker" else name
            check_method(role.dp_policy, side, deployment.router.profile is not None)
            if by_signature(role.dp_policy) and name != "decode":
                raise ValueError("signatures come from prefill workers: use mode: pd, and decode")
        except ValueError as error:
            raise ValueError(f"{name}.dp_policy: {error}") from error


def check_args(name: str, role: Role) -> list[Problem]:
    """Of the same flag under `args`: SGLang's methods may be set there, ours have their key."""
    given = {key.lstrip("-").replace("_", "-"): value for key, value in role.args.items()}
    if FLAG not in given:
        return []
    where = f"{name}.args.{FLAG}"
    if role.dp_policy is not None:
        return [Problem(where, f"{name}.dp_policy sets it", "keep one of the two")]
    if given[FLAG] in SGLANGS:
        return []
    return [Problem(where, f"{given[FLAG]} is not SGLang's", f"set {name}.dp_policy instead")]
