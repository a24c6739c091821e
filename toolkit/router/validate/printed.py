"""The table of request validation for people: the documents contain it, and this module prints it.

Rows that are the same at several endpoints are one row there.
"""

from __future__ import annotations

from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.sampling import SAMPLING
from toolkit.settings.router.permissions import ALLOWABLE

SHORT = {"completions": "text"}
"""Of endpoints that go by another name in the table."""


def document() -> str:
    """Markdown: what a deployment can allow, and what becomes of every field."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for endpoint, fields in ENDPOINTS.items():
        for field in fields.values():
            rows.setdefault(_row(field), []).append(SHORT.get(endpoint, endpoint))
    for field in SAMPLING.values():
        rows.setdefault(_row(field), []).append("sampling_params")
    lines = ["| `allow` | lets through |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in ALLOWABLE.items()]
    lines += ["", "| field | of | what becomes of it | values | why |", "|---|---|---|---|---|"]
    for policy in (Fate.REFUSE, Fate.DROP, Fate.PASS):
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
    """Print the table."""
    print(document(), end="")


if __name__ == "__main__":
    main()
