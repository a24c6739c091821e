"""A pydantic model for what passes at each endpoint, and what needs no closer look.

pydantic takes 10 us and more for a body that is as it should be, which is most of the price of
validation. So a body of nothing but values of the very types that SGLang declares passes without it
(`plain`); any other goes the long way, whole.
"""

from __future__ import annotations

import functools
import typing
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ValidatorFunctionWrapHandler, WrapValidator

from toolkit.router.validate.declared import DECLARED, RELEASES, declaration, lacks
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Field
from toolkit.router.validate.meanings import Meanings, meanings, reached

LONG = 256
"""Values of a body with more, lists end at their first wrong entry: an error for each of a million
would take seconds, and an answer of many times the request's size."""
_KINDS = frozenset({NoneType, bool, int, float, str})
_INT64 = 2**63


def is_long(value: Any) -> bool:
    """Whether there are more than LONG values in it, at any depth."""
    stack, count = [value], 0
    while stack:  # `nested` takes twice as long
        each = stack.pop()
        if isinstance(each, (dict, list)):
            count += len(each)
            if count > LONG:
                return True
            stack.extend(each.values() if isinstance(each, dict) else each)
    return False


_MADE: dict[Any, type[BaseModel]] = {}


@functools.cache
def model(
    endpoint: str, allow: frozenset[str], release: str = "", long: bool = False
) -> type[BaseModel]:
    """The model of what passes, for a set of permissions and a release of the workers (empty:
    nobody knows, so that the newest counts). Releases that say the same share one. `long`: for
    bodies that are long (`is_long`).

    What only a newer release has is in it, too: `known` says that such a field does not pass.
    """
    release = release or RELEASES[-1]
    names, rows = meanings(release, long), ENDPOINTS[endpoint]
    order = [*DECLARED[endpoint], *rows]  # errors come in SGLang's order
    judged = [rows[name] for name in dict.fromkeys(order) if name in rows]
    passing = [each for each in judged if each.passes(allow)]
    said = {each.name: declaration(endpoint, each.name, release) for each in passing if each.typed}
    parts = frozenset(reached(said.values(), release))
    key = (endpoint, allow, long, parts, *said.items(), *names.checks(endpoint).items())
    if key not in _MADE:
        fields = {each.name: _declared(each, names) for each in passing}
        _MADE[key] = names.model(f"Request_{endpoint}", endpoint, fields)
    return _MADE[key]


def _declared(field: Field, names: Meanings) -> tuple[Any, Any]:
    kind, default = names.field(field.place, field.name, field.typed)
    if field.null:
        kind = kind | None
    if field.kept and field.quick is not None:
        kind = Annotated[kind, WrapValidator(_unless(field.quick))]
    return kind, default


def _unless(quick: typing.Callable[[Any], bool]) -> Any:
    def validated(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return value if quick(value) else handler(value)

    return validated


class PassedField(NamedTuple):
    """A field that passes, and the classes whose values it takes as they are."""

    field: Field
    kinds: frozenset[type]


class PassedFields(NamedTuple):
    """The fields of an endpoint that a deployment lets pass and its workers know."""

    rows: dict[str, PassedField]
    required: frozenset[str]


@functools.cache
def known(endpoint: str, allow: frozenset[str], release: str = "") -> PassedFields:
    """Made once for each set of permissions and each release of the workers."""
    made = model(endpoint, allow, release)
    checks = made.__pydantic_decorators__.field_validators.values()
    checked = {name for check in checks for name in check.info.fields}
    rows, required = {}, set()
    for name, info in made.model_fields.items():
        if lacks(endpoint, name, release):
            continue
        whole = info.metadata or name in checked
        rows[name] = PassedField(
            ENDPOINTS[endpoint][name], frozenset() if whole else _kinds(info.annotation)
        )
        if info.is_required():
            required.add(name)
    return PassedFields(rows, frozenset(required))


def _kinds(declared: Any) -> frozenset[type]:
    if typing.get_origin(declared) in (typing.Union, UnionType):
        return frozenset().union(*map(_kinds, typing.get_args(declared)))
    return frozenset({declared}) & _KINDS if isinstance(declared, type) else frozenset()


def plain(row: PassedField, value: Any) -> bool:
    """Whether pydantic would give this very value back. False says nothing."""
    kind = type(value)
    if kind in row.kinds:
        if kind is str:
            return bool(value.isascii())  # half a surrogate pair is no text
        return kind is not int or -_INT64 <= value < _INT64
    quick = row.field.quick
    return quick is not None and quick(value)


def prepare(allow: frozenset[str]) -> None:
    """Make all of them now: it takes 150 ms, which no request need wait for."""
    for endpoint in ENDPOINTS:
        for release in ("", *RELEASES):
            known(endpoint, allow, release)
            model(endpoint, allow, release, long=True)
