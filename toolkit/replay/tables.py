"""What came of a replay, in tables."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from toolkit.decide.what_if import Side, WhatIf
from toolkit.report.numbers import MISSING, count, number, percent

Figures = list[tuple[str, str, str]]
"""(what, of the record, of the other policy)."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(found: WhatIf) -> Figures:
    """Rows of the table: the first cell says what the two others are."""
    ours, theirs = found.recorded, found.other
    rows = [
        ("requests placed", count(ours.placed.total()), count(theirs.placed.total())),
        ("no rank would do", count(ours.refused), count(theirs.refused)),
        ("fullest rank above the mean, KV tokens", *_each(found, "above_mean", fmean)),
        ("the same, 99 % of decisions below", *_each(found, "above_mean", _p99)),
        ("fullest rank over the mean", *_each(found, "spread", fmean)),
    ]
    if ours.likeness or theirs.likeness:
        rows.append(("likeness to what runs there (cosine)", *_each(found, "likeness", fmean)))
    return rows


def facts(found: WhatIf) -> str:
    """One sentence or more on what was compared."""
    share = found.same / found.decisions if found.decisions else 0.0
    said = (
        f"{count(found.decisions)} decisions on record; {found.other.name} makes "
        f"{percent(share)} of them alike."
    )
    if found.held_back:
        said += (
            f" {count(found.held_back)} times it would have left a request waiting, which then "
            "goes where the record says."
        )
    if not found.sent:
        said += (
            " The record does not say what was in flight, so each decision is compared by itself."
        )
    return said


def plain(found: WhatIf) -> dict[str, Any]:
    """For a JSON file."""
    return {
        "decisions": found.decisions,
        "same": found.same,
        "held_back": found.held_back,
        "policies": [_plain(side) for side in found.sides],
    }


def _plain(side: Side) -> dict[str, Any]:
    return {
        "policy": side.name,
        "refused": side.refused,
        "placed": {f"{name}:{rank}": n for (name, rank), n in sorted(side.placed.items())},
        "kv_above_mean": fmean(side.above_mean) if side.above_mean else None,
        "kv_above_mean_p99": _p99(side.above_mean) if side.above_mean else None,
        "kv_max_over_mean": fmean(side.spread) if side.spread else None,
        "likeness": fmean(side.likeness) if side.likeness else None,
    }


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 0.99)


def _each(found: WhatIf, name: str, of: Callable[[list[float]], float]) -> tuple[str, str]:
    recorded, other = (getattr(side, name) for side in found.sides)
    return _shown(recorded, of), _shown(other, of)


def _shown(values: list[float], of: Callable[[list[float]], float]) -> str:
    return number(of(values), 4) if values else MISSING
