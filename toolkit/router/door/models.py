"""pydantic models made of the table: types as SGLang's, and so its errors."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, FailFast, create_model

from toolkit.router.door.endpoints import ENDPOINTS
from toolkit.router.door.field import Field

LONG = 256
"""Entries of a list of which only the first wrong one is told: an error for each of a million would
take seconds, and an answer of many times the request's size."""


class _FirstOnly(FailFast):
    __hash__ = object.__hash__  # a member of a Union must have one


def first_only(declared: Any) -> Any:
    """A type whose lists end at their first wrong entry."""
    origin, members = get_origin(declared), get_args(declared)
    if origin is list:
        return Annotated[list[first_only(members[0])], _FirstOnly()]  # type: ignore[misc]
    if origin is Annotated:
        return Annotated[(first_only(members[0]), *members[1:])]  # type: ignore[return-value]
    if origin in (Union, types.UnionType):
        return Union[tuple(first_only(member) for member in members)]  # noqa: UP007
    return declared


def _model(
    endpoint: str, fields: dict[str, Field], allow: frozenset[str], long: bool
) -> type[BaseModel]:
    passing: dict[str, Any] = {
        name: (first_only(field.type) if long else field.type, ... if field.required else None)
        for name, field in fields.items()
        if field.passes(allow)
    }
    return create_model(f"Request_{endpoint}", **passing)


_MADE: dict[tuple[str, frozenset[str], bool], type[BaseModel]] = {}


def model(endpoint: str, allow: frozenset[str], long: bool = False) -> type[BaseModel]:
    """The model of what passes; made once for each set of permissions. `long`: for bodies with
    lists of more than LONG entries."""
    made = _MADE.get((endpoint, allow, long))
    if made is None:
        made = _MADE[endpoint, allow, long] = _model(endpoint, ENDPOINTS[endpoint], allow, long)
    return made


def prepare(allow: frozenset[str]) -> None:
    """Make all of them now: it takes 80 ms, which no request need wait for."""
    for endpoint in ENDPOINTS:
        model(endpoint, allow)
        model(endpoint, allow, long=True)
