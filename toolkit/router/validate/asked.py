"""Which fields of a body that workers get ask for something that not every worker gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Field
from toolkit.router.validate.sampling import SAMPLING


def _careful(rows: dict[str, Field]) -> dict[str, Field]:
    return {name: row for name, row in rows.items() if not row.handover.alike}


_CAREFUL = {endpoint: _careful(rows) for endpoint, rows in ENDPOINTS.items()}
_SAMPLING = _careful(SAMPLING)
_NONE: dict[str, Any] = {}


def asked(endpoint: str, body: dict[str, Any]) -> Iterator[Field]:
    """The rows of a body's fields, and of its sampling parameters', that ask for something which
    cannot pass freely from worker to worker (`Field.handover`), in the body's own order."""
    params: Any = body.get("sampling_params") if endpoint == "generate" else None
    if not isinstance(params, dict):
        params = _NONE
    greedy = (params if endpoint == "generate" else body).get("temperature") == 0
    for rows, values in ((_CAREFUL[endpoint], body), (_SAMPLING, params)):
        for name, value in values.items():
            row = rows.get(name)
            if row is not None and row.asks(value) and not (greedy and row.handover.unless_greedy):
                yield row
