"""What differs between two profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.profile_folder.schema import Profile
from toolkit.report.numbers import change, number

if TYPE_CHECKING:
    from rich.console import RenderableType

MISSING = "-"
_SHOWN = 60  # characters of a value
_SAME = 1e-9  # relative difference below which two figures are the same
_SKIPPED = ("requests", "schema_version")  # too long; `data` sums them up


@dataclass(frozen=True)
class Difference:
    """One figure: where it stands, both values as text, and the relative change if numbers."""

    name: str
    left: str
    right: str
    change: str = ""


def other_model(left: Profile, right: Profile) -> str:
    """What makes the two models different, as a sentence; "" when they are the same."""
    a, b = left.model, right.model
    shapes = [(len(m.layers), m.experts, m.top_k) for m in (a, b)]
    if shapes[0] == shapes[1] and a.fingerprint == b.fingerprint:
        return ""
    words = [
        f"{m.name} ({layers} MoE layers of {experts} experts, {k} a token)"
        for m, (layers, experts, k) in zip((a, b), shapes, strict=True)
    ]
    if words[0] == words[1]:
        return f"These are profiles of different models, both {words[0]}: fingerprints differ."
    return f"These are profiles of different models: {words[0]} and {words[1]}."


def differences(left: Profile, right: Profile) -> list[Difference]:
    """Every figure that is not the same, in the order of profile.json."""
    a, b = left.model_dump(mode="json"), right.model_dump(mode="json")
    for data in (a, b):
        for key in _SKIPPED:
            data.pop(key)
        # By kind, so that the same placements are compared wherever they stand.
        data["placements"] = {placed.pop("kind"): placed for placed in data["placements"]}
    return list(_compare("", a, b))


def diff(left: Profile, right: Profile) -> RenderableType:
    """The differences as a table to print with rich; different models are said first."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    if warning := other_model(left, right):
        parts.append(Text(warning + "\n", "bold yellow"))
    found = differences(left, right)
    if not found:
        return Group(*parts, Text("The profiles do not differ."))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("", "left"), ("first", "right"), ("second", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("change", justify="right")
    for row in found:
        table.add_row(Text(row.name), Text(row.left), Text(row.right), row.change)
    return Group(*parts, table)


def _compare(name: str, a: Any, b: Any) -> Iterator[Difference]:
    if _same(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            yield from _compare(f"{name}.{key}" if name else key, a.get(key), b.get(key))
    elif _figures(a) and _figures(b):
        mean = (sum(a) / len(a), sum(b) / len(b))
        sizes = f"{len(a)}" if len(a) == len(b) else f"{len(a)} and {len(b)}"
        words = f"{name} (mean of {sizes})"
        yield Difference(words, number(mean[0]), number(mean[1]), change(mean[1], mean[0], 1))
    else:
        relative = ""
        if _is_number(a) and _is_number(b):
            relative = change(b, a, 1)
        yield Difference(name, _text(a), _text(b), relative)


def _same(a: Any, b: Any) -> bool:
    if _is_number(a) and _is_number(b):
        return bool(abs(a - b) <= _SAME * max(abs(a), abs(b)))
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figures(value: Any) -> bool:
    """Measured figures, one a layer or so; lists of whole numbers are layers or sizes."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, float) for x in value)


def _text(value: Any) -> str:
    if value is None or value == []:
        return MISSING
    if _is_number(value):
        return number(value) if isinstance(value, float) else f"{value:,}"
    if isinstance(value, dict):
        return "there"  # a whole part that the other profile lacks
    words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
