"""`dp_policy` of a role: how SGLang's own DP controller chooses the rank of a request.

What it may name: `toolkit.policies.dp_method`.
"""

from collections.abc import Mapping

from toolkit.errors import Problem
from toolkit.settings.role import Role

FLAG = "load-balance-method"


def by_signature(name: str | None) -> bool:
    """As `toolkit.policies.dp_method`. Policies bring numpy, and that brings threads: `isolate`
    needs a launcher without."""
    if name is None:
        return False
    from toolkit.policies import dp_method

    return dp_method.by_signature(name)


def check_roles(roles: Mapping[str, Role], router: str, profiled: bool) -> None:
    """Whether the DP policies of a deployment's roles are known and will be asked. `router`: its
    kind; `profiled`: it has a profile. ValueError: why not."""
    for name, role in roles.items():
        if role.dp_policy is None:
            continue
        from toolkit.policies.dp_method import check_method

        if router == "toolkit":
            raise ValueError(
                f"{name}.dp_policy: {role.dp_policy} would never be asked, as router: toolkit "
                "names the DP rank of every request: set router.prefill_policy and "
                "router.decode_policy, or use router: sglang or none"
            )
        try:
            side = None if name == "worker" else name
            check_method(role.dp_policy, side, profiled)
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
    from toolkit.policies.dp_method import SGLANGS

    if given[FLAG] in SGLANGS:
        return []
    return [Problem(where, f"{given[FLAG]} is not SGLang's", f"set {name}.dp_policy instead")]
