"""Policies: who gets the next request. One file each, a registry here, no if-chains elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.policies.base import Decision, Load, Policy, RequestView, Side, WorkerView
from toolkit.policies.least_tokens import LeastTokensPolicy
from toolkit.policies.power_of_two import PowerOfTwoPolicy
from toolkit.policies.prefix_affinity import PrefixAffinityPolicy
from toolkit.policies.random import RandomPolicy
from toolkit.policies.round_robin import RoundRobinPolicy
from toolkit.policies.shortest_queue import ShortestQueuePolicy

__all__ = [
    "POLICIES",
    "Decision",
    "Load",
    "Policy",
    "RequestView",
    "Side",
    "WorkerView",
    "make_policy",
    "policy_names",
]

_BOTH = ("prefill", "decode")

POLICIES: dict[str, tuple[Callable[[int], Policy], tuple[str, ...]]] = {
    "random": (RandomPolicy, _BOTH),
    "round_robin": (RoundRobinPolicy, _BOTH),
    "shortest_queue": (ShortestQueuePolicy, _BOTH),
    "power_of_two": (PowerOfTwoPolicy, _BOTH),
    "least_tokens": (LeastTokensPolicy, _BOTH),
    "prefix_affinity": (PrefixAffinityPolicy, ("prefill",)),
}
"""Name -> (constructor taking a seed, the sides it may be used on)."""


def policy_names(side: str | None = None) -> list[str]:
    """Known policies, those of one side if given."""
    return [name for name, (_, sides) in POLICIES.items() if side is None or side in sides]


def make_policy(name: str, seed: int = 0, side: str | None = None) -> Policy:
    """A fresh policy object. ValueError names the known ones."""
    if name not in policy_names(side):
        where = f"{side} " if side else ""
        raise ValueError(f"unknown {where}policy {name!r}; known: {', '.join(policy_names(side))}")
    return POLICIES[name][0](seed)
