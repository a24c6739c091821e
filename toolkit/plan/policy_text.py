"""Policies as a deployment file writes them, alone or in `composed`: one value changed."""

from typing import Any

from toolkit.policies import PUBLISHED
from toolkit.policies.brh import check_brh
from toolkit.policies.gimbal import Thresholds

COMPOSED = "composed"
WHOLE = "filter+eldr+level+user"
"""What `composed` alone means."""
BARRIERS = ("br0", "brh", "level")
BRH = {"predictor": "learned"}


def parts(text: str) -> list[str]:
    """The policy itself, or each part of a composed one, with its parameter."""
    base, _, parameter = text.partition("@")
    return (parameter or WHOLE).split("+") if base == COMPOSED else [text]


def part(text: str, *names: str) -> str | None:
    """The first part that is called one of these; None without one. A published rule is nobody's
    to tune: its name means what was published."""
    return next(
        (
            each
            for each in parts(text)
            if each.partition("@")[0] in names and each.partition(":")[0] not in PUBLISHED
        ),
        None,
    )


def swapped(text: str, old: str, new: str) -> str:
    """The policy with another part in the place of one."""
    if text.partition("@")[0] != COMPOSED:
        return new
    return f"{COMPOSED}@" + "+".join(new if each == old else each for each in parts(text))


def brh_value(text: str, key: str) -> Any:
    """An option of the BR-H in a policy; None where the text leaves it to BR-H."""
    return _brh(text).get(key)


def with_brh(text: str, key: str, value: Any) -> str:
    """The policy whose BR-H has this option; None takes it away."""
    found = part(text, "brh")
    assert found is not None
    options = BRH | _brh(text)
    options[key] = value
    written = f"brh@{options.pop('predictor')}"
    stage = options.pop("s_greedy", None)
    written += "" if stage is None else f":{stage}"
    for name in ("horizon", "gamma", "alpha", "beta"):
        if options.get(name) is not None:
            written += f":{name}={options[name]:g}"
    return swapped(text, found, written)


def s_greedy(text: str) -> int | None:
    """Of the barrier score in a policy."""
    found = part(text, *BARRIERS)
    if found is None or found.startswith("brh"):
        return None if found is None else _brh(text).get("s_greedy")
    parameter = found.partition("@")[2]
    return int(parameter) if parameter else None


def with_s_greedy(text: str, value: int | None) -> str:
    """The policy whose barrier score has this one."""
    found = part(text, *BARRIERS)
    assert found is not None
    if found.startswith("brh"):
        return with_brh(text, "s_greedy", value)
    base = found.partition("@")[0]
    return swapped(text, found, base if value is None else f"{base}@{value}")


def thresholds(text: str) -> Thresholds:
    """Gimbal's."""
    parameter = text.partition("@")[2]
    return Thresholds.parse(parameter) if parameter else Thresholds()


def with_threshold(text: str, key: str, value: float) -> str:
    """Gimbal with one of them changed: kv, diff or load."""
    now = thresholds(text)
    values = {"kv": now.kv, "diff": now.diff, "load": now.load} | {key: value}
    return f"gimbal@{values['kv']:g}:{values['diff']:g}:{values['load']:g}"


def without_tau(text: str) -> str:
    """The policy with its locality band left to the router's `tau`."""
    found = part(text, "eldr")
    return text if found is None else swapped(text, found, "eldr")


def tau_in(text: str) -> float | None:
    """The band that the text itself carries."""
    parameter = (part(text, "eldr") or "").partition("@")[2]
    return float(parameter) if parameter else None


def _brh(text: str) -> dict[str, Any]:
    parameter = (part(text, "brh") or "").partition("@")[2]
    return check_brh(parameter) if parameter else dict(BRH)
