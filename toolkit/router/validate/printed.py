"""The table of request validation for people: the documents contain it, and this module prints it.

Rows that are the same at several endpoints are one row there.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.router.validate.declared import RELEASES, lacks, since
from toolkit.router.validate.declared import SAMPLING as PARAMETERS
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.handover import UNJUDGED
from toolkit.router.validate.sampling import SAMPLING
from toolkit.settings.router.permissions import ALLOWABLE

SHORT = {"completions": "text"}
"""Of endpoints that go by another name in the table."""


COLUMNS = (
    *("field", "of", "what becomes of it", "values", "since", "first token", "goes on"),
    *("one token", "why"),
)


class PrintedRow(NamedTuple):
    """What one or more endpoints say of a field, in words."""

    name: str
    what: str
    values: str
    since: str
    handover: tuple[str, str, str]
    why: str


def document() -> str:
    """Markdown: what a deployment can allow, and what becomes of every field."""
    rows: dict[PrintedRow, list[str]] = {}
    for place, fields in {**ENDPOINTS, PARAMETERS: SAMPLING}.items():
        for field in fields.values():
            rows.setdefault(_row(place, field), []).append(SHORT.get(place, place))
    lines = ["| `allow` | lets through |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in ALLOWABLE.items()]
    lines += ["", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for policy in (Fate.REFUSE, Fate.DROP, Fate.PASS):
        for row, places in sorted(rows.items()):
            if row.what.startswith(policy.value):
                cells = [f"`{row.name}`", ", ".join(places), row.what, row.values, row.since]
                lines.append(f"| {' | '.join([*cells, *row.handover, row.why])} |")
    return "\n".join(lines) + "\n"


def _row(place: str, field: Field) -> PrintedRow:
    what = field.policy.value
    if field.allow is not None:
        what += f", passed with `{field.allow}`"
    says = field.rule.says if field.rule is not None else ""
    said, why = field.handover, field.why
    cells = ("", "", "")
    if said is not UNJUDGED:
        cells = (
            "prefill" if said.first_token else "decode",
            "yes" if said.resumable else "no",
            "prefill" if said.prefill_only else "decode",
        )
        if not said.alike:
            why += f". With several workers: {said.why}"
        if said.unless:
            why += f", unless {said.unless}"
    return PrintedRow(field.name, what, says.replace("|", "\\|"), _since(place, field), cells, why)


def _since(place: str, field: Field) -> str:
    """Which supported releases have it; empty: all of them, or SGLang does not declare it."""
    first = since(place, field.name)
    text = first if first != RELEASES[0] else ""
    if lacks(place, field.name, RELEASES[-1]):
        last = [each for each in RELEASES if not lacks(place, field.name, each)][-1]
        text = f"to {last}"
    if text and field.policy is Fate.PASS and field.lacking is Fate.DROP:
        text += ", dropped before"
    return text


def main() -> None:
    """Print the table."""
    print(document(), end="")


if __name__ == "__main__":
    main()
