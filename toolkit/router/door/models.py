"""pydantic models made of the table: types as SGLang's, and so its errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from toolkit.router.door.field import Field
from toolkit.router.door.tables import TABLES


def _model(endpoint: str, fields: dict[str, Field], allow: frozenset[str]) -> type[BaseModel]:
    passing: dict[str, Any] = {
        name: (field.type, ... if field.required else None)
        for name, field in fields.items()
        if field.passes(allow)
    }
    return create_model(f"Request_{endpoint}", **passing)


_MADE: dict[tuple[str, frozenset[str]], type[BaseModel]] = {}


def model(endpoint: str, allow: frozenset[str]) -> type[BaseModel]:
    """The model of what passes; made once for each set of permissions."""
    made = _MADE.get((endpoint, allow))
    if made is None:
        made = _MADE[endpoint, allow] = _model(endpoint, TABLES[endpoint], allow)
    return made


def prepare(allow: frozenset[str]) -> None:
    """Make all of them now: it takes 40 ms, which no request need wait for."""
    for endpoint in TABLES:
        model(endpoint, allow)
