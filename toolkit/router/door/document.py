"""The door's table for people: `python -m toolkit.router.door.document` writes it into the README.

Rows that are the same at several endpoints are one row there.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.router.door.field import Field, Policy
from toolkit.router.door.limits import ALLOWABLE
from toolkit.router.door.tables import SAMPLING, TABLES

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- door: begin -->", "<!-- door: end -->"
SHORT = {"chat": "chat", "completions": "text", "generate": "generate"}


def document() -> str:
    """Markdown: what a deployment can allow, and what becomes of every field."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for endpoint, fields in TABLES.items():
        for field in fields.values():
            rows.setdefault(_row(field), []).append(SHORT[endpoint])
    for field in SAMPLING.values():
        rows.setdefault(_row(field), []).append("sampling_params")
    lines = ["| `allow` | lets through |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in ALLOWABLE.items()]
    lines += ["", "| field | of | what becomes of it | values | why |", "|---|---|---|---|---|"]
    for policy in (Policy.REFUSE, Policy.DROP, Policy.PASS):
        for (name, what, values, why), places in sorted(rows.items()):
            if what.startswith(policy.value):
                where = ", ".join(places)
                lines.append(f"| `{name}` | {where} | {what} | {values} | {why} |")
    return "\n".join(lines) + "\n"


def _row(field: Field) -> tuple[str, str, str, str]:
    what = field.policy.value
    if field.allow is not None:
        what += f", passed with `{field.allow}`"
    says = field.rule.says if field.rule is not None else ""
    return field.name, what, says.replace("|", "\\|"), field.why


def main() -> None:
    """Write the table between its marks."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{document()}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
