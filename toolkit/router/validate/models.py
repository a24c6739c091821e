"""pydantic models made of the table: types as SGLang's, and so its errors."""

from __future__ import annotations

import functools
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, FailFast, create_model

from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Field

LONG = 256
"""Values of a body with more, lists end at their first wrong entry: an error for each of a million
would take seconds, and an answer of many times the request's size."""


class _FirstOnly(FailFast):
    __hash__ = object.__hash__  # a member of a Union must have one


def first_only(declared: Any) -> Any:
    """A type whose lists end at their first wrong entry."""
    origin, members = get_origin(declared), get_args(declared)
    if origin is list:
        return Annotated[list[first_only(members[0])], _FirstOnly()]  # type: ignore[misc]
    if origin is Annotated:
        return Annotated[(first_only(members[0]), *members[1:])]
    if origin in (Union, types.UnionType):
        return Union[tuple(first_only(member) for member in members)]  # noqa: UP007
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        return _first_only_model(declared)
    return declared


@functools.cache
def _first_only_model(declared: type[BaseModel]) -> type[BaseModel]:
    """The same model, and the lists in it end at their first wrong entry, too."""
    changed: dict[str, Any] = {}
    for name, field in declared.model_fields.items():
        kind = first_only(field.annotation)
        if kind != field.annotation:
            changed[name] = (kind, field)
    if not changed:
        return declared
    return create_model(declared.__name__, __base__=declared, **changed)


def is_long(value: Any) -> bool:
    """Whether there are more than LONG values in it, at any depth."""
    stack, count = [value], 0
    while stack:
        each = stack.pop()
        if isinstance(each, (dict, list)):
            count += len(each)
            if count > LONG:
                return True
            stack.extend(each.values() if isinstance(each, dict) else each)
    return False


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
    """The model of what passes; made once for each set of permissions. `long`: for bodies that are
    long (`is_long`)."""
    made = _MADE.get((endpoint, allow, long))
    if made is None:
        made = _MADE[endpoint, allow, long] = _model(endpoint, ENDPOINTS[endpoint], allow, long)
    return made


def prepare(allow: frozenset[str]) -> None:
    """Make all of them now: it takes 80 ms, which no request need wait for."""
    for endpoint in ENDPOINTS:
        model(endpoint, allow)
        model(endpoint, allow, long=True)
