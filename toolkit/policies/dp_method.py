"""What chooses the rank of a request inside SGLang's own DP controller: its methods, or ours.

A deployment names it (`dp_policy` of a role), a worker by itself with `--load-balance-method`
(`patches.dp.method` puts ours in the place of SGLang's).
"""

from toolkit.contract.variables import DP_PROFILE_VARIABLE
from toolkit.policies import check_policy, follows_experts, make_policy
from toolkit.policies.rounds.pooling import bare

SGLANGS = ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens")
"""SGLang's own; a policy of ours of the same name is what it is there (round_robin)."""


def by_signature(name: str | None) -> bool:
    """Whether a DP controller can use it on the decode side only, and only with a profile."""
    return follows_experts(name or "")


def check_method(name: str, side: str | None = None, profile: bool = False) -> None:
    """Return when a DP controller of this side can use it; None is a plain server, which may have
    the policies of either. `profile`: it has one.

    ValueError: one sentence that says what is wrong and what is known.
    """
    if name in SGLANGS:
        return
    if bare(name) != name:
        raise ValueError(
            f"{name!r}: a DP controller decides request by request and has no pool; write "
            f"{bare(name)}"
        )
    base = name.partition("@")[0]
    if base == "label_oracle":
        raise ValueError(
            f"{name!r} needs the requests' labels, which SGLang's DP controller does not see: use "
            "the toolkit's router for it"
        )
    if by_signature(name) and not profile:
        raise ValueError(
            f"{name!r} needs a profile, to read which experts the prompts used: set router.profile"
            f" ({DP_PROFILE_VARIABLE} for a worker by itself)"
        )
    try:
        check_policy(name, side)
    except ValueError as error:
        raise ValueError(f"{error}; and SGLang's own: {', '.join(SGLANGS)}") from error
    locality = make_policy(name, side=side).locality
    if locality is not None and locality.refits is not None:
        raise ValueError(
            f"{name!r} refits its centroids by the clock, which a DP controller does not do: write "
            "eldr@paper, or use the toolkit's router for it"
        )
