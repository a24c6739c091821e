"""Which parts of `composed` are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import BrHPolicy, check_brh
from toolkit.policies.level import LevelPolicy
from toolkit.policies.published import RULES
from toolkit.policies.rounds.balance_route import BalanceRoute, check_s_greedy
from toolkit.policies.rounds.pooling import bare
from toolkit.policies.support.expert_locality import check_tau

BARRIERS: dict[str, Callable[..., BalanceRoute]] = {
    "br0": Br0Policy,
    "brh": BrHPolicy,
    "level": LevelPolicy,
}
PARTS = ("filter", "eldr", *BARRIERS, "user")
NONE = "none"


def _s_greedy(text: str) -> dict[str, Any]:
    return {"s_greedy": check_s_greedy(text)}


_CHECKS: dict[str, Callable[[str], Any]] = {
    "eldr": check_tau,
    "br0": _s_greedy,
    "brh": check_brh,
    "level": _s_greedy,
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts, always asked in the same order: `filter`, `eldr`, `barrier` ("br0", "brh",
    "level" or "" for none) with its `options`, `user`. `tau` is None where the name leaves it to
    others."""

    filter: bool = True
    eldr: bool = True
    barrier: str = "level"
    user: bool = True
    tau: float | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Parts:
        """From `filter+eldr+level+user` or some of these, each as its own policy would be called
        (`eldr@0.05`, `br0@0`, `brh@oracle`), or from `none`. ValueError: anything else."""
        found: dict[str, str] = {}
        for part in text.split("+") if text != NONE else ():
            name, _, parameter = part.partition("@")
            if name not in PARTS:
                raise ValueError(
                    f"unknown part {name!r}; join some of {', '.join(PARTS)} by +, or write {NONE}"
                )
            if name in found:
                raise ValueError(f"part {name!r} stands twice: keep one")
            if "@" in part and name not in _CHECKS:
                raise ValueError(f"part {name!r} takes no parameter: write {name}, not {part}")
            if parameter.partition(":")[0] in RULES:
                raise ValueError(f"{part} is a rule by itself: write {name} here, or {part} alone")
            found[name] = parameter if "@" in part else ""
            if "@" in part and not parameter:
                raise ValueError(f"part {part!r} ends in @: write {name}, or a value after it")
        barriers = [name for name in BARRIERS if name in found]
        if len(barriers) > 1:
            raise ValueError(f"{' and '.join(barriers)} are barrier scores: keep one of them")
        values = {name: _CHECKS[name](text) for name, text in found.items() if text}
        barrier = barriers[0] if barriers else ""
        return cls(
            filter="filter" in found,
            eldr="eldr" in found,
            barrier=barrier,
            user="user" in found,
            tau=values.get("eldr"),
            options=tuple(values.get(barrier, {}).items()),
        )


def follows_experts(name: str) -> bool:
    """Whether a policy of this name looks at signatures, and so needs a profile: `eldr`, and
    `composed` with that part, with the pool or without. What is no policy's name does not."""
    base, _, text = bare(name).partition("@")
    if base != "composed":
        return base == "eldr"
    try:
        return (Parts.parse(text) if text else Parts()).eldr
    except ValueError:
        return False
