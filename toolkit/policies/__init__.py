"""Policies: who gets the next request. One file each, a registry here, no if-chains elsewhere."""

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

from toolkit.policies.base import Decision, Load, Policy, RequestView, Side, WorkerView
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import BrHPolicy, check_brh
from toolkit.policies.composed.parts import Parts, follows_experts
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.gimbal import GimbalPolicy, Thresholds
from toolkit.policies.kv_shortest_queue import KvShortestQueuePolicy
from toolkit.policies.label_oracle import LabelOraclePolicy
from toolkit.policies.least_tokens import LeastTokensPolicy
from toolkit.policies.level import LevelPolicy
from toolkit.policies.power_of_two import PowerOfTwoPolicy
from toolkit.policies.prefix_affinity import PrefixAffinityPolicy
from toolkit.policies.published.artifact import ArtifactEldrPolicy
from toolkit.policies.published.br0 import PaperBr0Policy
from toolkit.policies.published.brh import PaperBrHPolicy, check_paper_brh
from toolkit.policies.published.eldr import PaperEldrPolicy
from toolkit.policies.published.gimbal import PaperGimbalPolicy
from toolkit.policies.random import RandomPolicy
from toolkit.policies.round_robin import RoundRobinPolicy
from toolkit.policies.rounds.balance_route import check_s_greedy
from toolkit.policies.rounds.pooling import POOLED, UNPOOLED, PooledPolicy, UnpooledPolicy
from toolkit.policies.shortest_queue import ShortestQueuePolicy
from toolkit.policies.support.expert_locality import check_tau

__all__ = [
    "POLICIES",
    "POOLING",
    "PUBLISHED",
    "Decision",
    "Known",
    "Load",
    "Policy",
    "RequestView",
    "Side",
    "WorkerView",
    "check_policy",
    "follows_experts",
    "make_policy",
    "policy_names",
]

_BOTH = ("prefill", "decode")


class Known(NamedTuple):
    """A registered policy: `make(seed, **options)`, and the sides it may be used on.

    `parameter` is the option that a name may carry after "@", as `eldr@0.05` does, or after ":"
    where it has an "@" already (`eldr@paper:0.05`); `check` reads its text (ValueError says what is
    wrong with it) and may return several options as a dict.
    `takes_tau`: it has the option `tau`."""

    make: Callable[..., Policy]
    sides: tuple[str, ...] = _BOTH
    parameter: str = ""
    check: Callable[[str], Any] | None = None
    takes_tau: bool = False


POLICIES: dict[str, Known] = {
    "random": Known(RandomPolicy),
    "round_robin": Known(RoundRobinPolicy),
    "shortest_queue": Known(ShortestQueuePolicy),
    "kv_shortest_queue": Known(KvShortestQueuePolicy),
    "power_of_two": Known(PowerOfTwoPolicy),
    "least_tokens": Known(LeastTokensPolicy),
    "prefix_affinity": Known(PrefixAffinityPolicy, ("prefill",)),
    "eldr": Known(EldrPolicy, ("decode",), "tau", check_tau, takes_tau=True),
    "br0": Known(Br0Policy, ("decode",), "s_greedy", check_s_greedy),
    "brh": Known(BrHPolicy, ("decode",), "predictor", check_brh),
    "level": Known(LevelPolicy, ("decode",), "s_greedy", check_s_greedy),
    "composed": Known(ComposedPolicy, ("decode",), "parts", Parts.parse, takes_tau=True),
    "gimbal": Known(GimbalPolicy, _BOTH, "thresholds", Thresholds.parse),
    "label_oracle": Known(LabelOraclePolicy, ("decode",)),
}

BALANCERS = ("shortest_queue", "kv_shortest_queue", "least_tokens")
"""By requests, by KV tokens, by both: what can be had without this project. The best of them is
what anything else has to beat."""

PUBLISHED: dict[str, Known] = {
    "eldr@paper": Known(PaperEldrPolicy, ("decode",), "tau", check_tau),
    "eldr@artifact": Known(ArtifactEldrPolicy, ("decode",), "tau", check_tau),
    "br0@paper": Known(PaperBr0Policy, ("decode",), "s_greedy", check_s_greedy),
    "brh@paper": Known(PaperBrHPolicy, ("decode",), "predictor", check_paper_brh),
    "gimbal@paper": Known(PaperGimbalPolicy, _BOTH, "thresholds", Thresholds.parse),
}
"""The same policies as others published them."""

POOLING: dict[str, Callable[[Policy], Policy]] = {POOLED: PooledPolicy, UNPOOLED: UnpooledPolicy}
"""What may stand before a decode policy's name, as in `pooled@shortest_queue`."""


def policy_names(side: str | None = None) -> list[str]:
    """Known policies, those of one side if given, without parameters."""
    return [name for name, known in POLICIES.items() if _of_side(known, side)]


def check_policy(name: str, side: str | None = None) -> None:
    """Return when `make_policy` would take this name, which may carry a parameter.

    ValueError: one sentence that says what is wrong and what is known.
    """
    word, policy = _pooling(name, side)
    _parse(policy, side)
    if word:
        POOLING[word](make_policy(policy, 0, side))


def make_policy(
    name: str, seed: int = 0, side: str | None = None, tau: float | None = None
) -> Policy:
    """A fresh policy object, called as it was asked for (`eldr@0.05`).

    `tau` is for a policy that has one, where its name does not carry it; None is the policy's own
    default. ValueError: as `check_policy`, or a tau outside [0, 1].
    """
    word, own = _pooling(name, side)
    known, options = _parse(own, side)
    if known.takes_tau and tau is not None:
        options = {"tau": tau} | options
    policy = known.make(seed, **options)
    policy.name = own
    return POOLING[word](policy) if word else policy


def _pooling(name: str, side: str | None) -> tuple[str, str]:
    """The word before a policy that says whether it has the pool, empty without one; the policy."""
    word, _, policy = name.partition("@")
    if word not in POOLING:
        return "", name
    if side == "prefill":
        raise ValueError(f"{name!r}: only decode policies have a pool; write {policy or 'another'}")
    if not policy:
        raise ValueError(f"{name!r} needs a policy: {word}@POLICY; known: {_shown(side)}")
    return word, policy


def _parse(name: str, side: str | None) -> tuple[Known, dict[str, Any]]:
    rule, given, text = name.partition(":")
    known = PUBLISHED.get(rule)
    if known is None:
        rule, given, text = name.partition("@")
        known = POLICIES.get(rule)
    if known is None or not _of_side(known, side):
        where = f"{side} " if side else ""
        raise ValueError(f"unknown {where}policy {name!r}; known: {_shown(side)}")
    if not given:
        return known, {}
    if known.check is None:
        raise ValueError(f"policy {rule!r} takes no parameter, got {name!r}; known: {_shown(side)}")
    try:
        value = known.check(text)
    except ValueError as error:
        shown = f"{_hint(name)}; known: {_shown(side)}"
        raise ValueError(f"policy {name!r}: {error}{shown}") from error
    return known, value if isinstance(value, dict) else {known.parameter: value}


def _of_side(known: Known, side: str | None) -> bool:
    return side is None or side in known.sides


def _hint(name: str) -> str:
    """Which published rule was meant, where one was."""
    rule = name.partition(":")[0]
    near = difflib.get_close_matches(rule, PUBLISHED, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near and near[0] != rule else ""


def _shown(side: str | None) -> str:
    """The known names, with what they may carry."""
    own = [(n, known, "@") for n, known in POLICIES.items()]
    theirs = [(n, known, ":") for n, known in PUBLISHED.items()]
    shown = [
        n + (f"[{mark}{known.parameter.upper()}]" if known.parameter else "")
        for n, known, mark in own + theirs
        if _of_side(known, side)
    ]
    words = [f"{word}@POLICY" for word in POOLING] if side != "prefill" else []
    return ", ".join(shown + words)
