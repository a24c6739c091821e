"""Boundary policies by name: the shipped ones, and anybody's own."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from toolkit.policies.preemption.boundary import BoundaryPolicy
from toolkit.policies.preemption.deadline import Deadline
from toolkit.policies.preemption.fair import Fair
from toolkit.policies.preemption.strict import Strict


class Shipped(NamedTuple):
    """`make(knob)`; `knob` says what the name may carry after "@", empty for nothing."""

    make: Callable[..., BoundaryPolicy]
    knob: str = ""


SHIPPED = {
    "strict": Shipped(Strict),
    "deadline": Shipped(Deadline, "seconds of margin"),
    "fair": Shipped(Fair, "the share that best-effort work keeps"),
}


def boundary_policy(name: str) -> BoundaryPolicy:
    """`strict`, `deadline`, `fair`, the last two with a knob (`fair@0.7`); or `MODULE:NAME`, any
    callable that takes a `Boundary` and says "continue" or "yield".

    ValueError: no such policy, a knob that it does not have or take, a module that cannot be
    imported, or has no such callable.
    """
    if ":" in name:
        return _own(name)
    word, given, text = name.partition("@")
    shipped = SHIPPED.get(word)
    if shipped is None:
        known = ", ".join(SHIPPED)
        raise ValueError(f"no boundary policy {name!r}: there are {known}, or MODULE:NAME")
    if not given:
        return shipped.make()
    if not shipped.knob:
        raise ValueError(f"{name!r}: {word} has no knob")
    try:
        knob = float(text)
    except ValueError:
        raise ValueError(f"{name!r}: {text!r} is no number ({shipped.knob})") from None
    return shipped.make(knob)


def _own(name: str) -> BoundaryPolicy:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever somebody's module raises
        raise ValueError(
            f"boundary policy {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if isinstance(found, type):
        raise ValueError(f"boundary policy {name!r} is a class: name a function, or an instance")
    if not callable(found):
        raise ValueError(f"boundary policy {name!r} is no callable")
    policy: BoundaryPolicy = found
    return policy
