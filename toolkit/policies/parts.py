"""Which parts of `composed` are on."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.policies.eldr import check_tau
from toolkit.policies.predictors import check_predictor

PARTS = ("filter", "eldr", "br0", "brh", "user")
NONE = "none"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts, always asked in the same order: `filter`, `eldr`, `barrier` ("br0", "brh" or ""
    for none), `user`. `tau` and `predictor` are None where the name leaves them to others."""

    filter: bool = True
    eldr: bool = True
    barrier: str = "brh"
    user: bool = True
    tau: float | None = None
    predictor: str | None = None

    @classmethod
    def parse(cls, text: str) -> Parts:
        """From `filter+eldr+brh+user` or some of these, each as its own policy would be called
        (`eldr@0.05`, `brh@oracle`), or from `none`. ValueError: anything else."""
        found: dict[str, str] = {}
        for part in text.split("+") if text != NONE else ():
            name, _, parameter = part.partition("@")
            if name not in PARTS:
                raise ValueError(
                    f"unknown part {name!r}; join some of {', '.join(PARTS)} by +, or write {NONE}"
                )
            if name in found:
                raise ValueError(f"part {name!r} stands twice: keep one")
            if "@" in part and name not in ("eldr", "brh"):
                raise ValueError(f"part {name!r} takes no parameter: write {name}, not {part}")
            found[name] = parameter if "@" in part else ""
            if "@" in part and not parameter:
                raise ValueError(f"part {part!r} ends in @: write {name}, or a value after it")
        if "br0" in found and "brh" in found:
            raise ValueError("br0 and brh are both barrier scores: keep one of them")
        tau, predictor = found.get("eldr"), found.get("brh")
        return cls(
            filter="filter" in found,
            eldr="eldr" in found,
            barrier="br0" if "br0" in found else "brh" if "brh" in found else "",
            user="user" in found,
            tau=check_tau(tau) if tau else None,
            predictor=check_predictor(predictor) if predictor else None,
        )


def follows_experts(name: str) -> bool:
    """Whether a policy of this name looks at signatures, and so needs a profile: `eldr`, and
    `composed` with that part. What is no policy's name does not."""
    base, _, text = name.partition("@")
    if base != "composed":
        return base == "eldr"
    try:
        return (Parts.parse(text) if text else Parts()).eldr
    except ValueError:
        return False
