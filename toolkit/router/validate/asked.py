"""Which fields of a body that workers get ask for something that not every worker gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.field import Field
from toolkit.router.validate.handover import UNJUDGED


def _careful(rows: dict[str, Field]) -> dict[str, Field]:
    return {name: row for name, row in rows.items() if row.inside or not row.handover.alike}


_SAMPLING = _careful(SAMPLING)
_ANYWHERE = _SAMPLING | {
    name: row
    for rows in ENDPOINTS.values()
    for name, row in _careful(rows).items()
    if row.handover is not UNJUDGED
}
"""SGLang passes over a field that only another endpoint knows. Nobody has to rely on that: its name
counts as it does there."""
_CAREFUL = {
    endpoint: {name: row for name, row in _ANYWHERE.items() if name not in rows} | _careful(rows)
    for endpoint, rows in ENDPOINTS.items()
}
_NONE: dict[str, Any] = {}


def asked(endpoint: str, body: dict[str, Any]) -> Iterator[Field]:
    """The rows of a body's fields, and of its sampling parameters', that ask for something which
    cannot pass freely from worker to worker (`Field.handover`), in the body's own order."""
    params: Any = body.get("sampling_params") if endpoint == "generate" else None
    if not isinstance(params, dict):
        params = _NONE
    drawn = params if endpoint == "generate" else body
    for rows, values in ((_CAREFUL[endpoint], body), (_SAMPLING, params)):
        for name, value in values.items():
            row = rows.get(name)
            if row is None:
                continue
            if row.inside is not None:
                said = row.inside(value)
                if not said.alike:
                    yield replace(row, handover=said)
            elif row.asks(value) and not _excused(row, body, drawn):
                yield row


def _excused(row: Field, body: dict[str, Any], drawn: dict[str, Any]) -> bool:
    """Whether the condition holds under which the field forbids nothing; `drawn` has the
    temperature."""
    unless = row.handover.unless
    if unless == "the temperature is 0":
        return drawn.get("temperature") == 0
    return unless == "tool_choice is none" and body.get("tool_choice") == "none"
