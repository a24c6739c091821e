"""Values that need no closer look: those of the very type that the table declares.

pydantic takes 10 us and more for a body that is as it should be, which is most of the price of
validation. So a body of nothing but such values passes without it; any other goes the long way,
whole.
"""

from __future__ import annotations

import typing
from types import NoneType, UnionType
from typing import Any, NamedTuple

from toolkit.router.validate.declared import lacks
from toolkit.router.validate.endpoints import ENDPOINTS
from toolkit.router.validate.field import Field

_KINDS = frozenset({NoneType, bool, int, float, str})
_INT64 = 2**63


class Row(NamedTuple):
    """A field that passes, and the classes whose values it takes as they are."""

    field: Field
    kinds: frozenset[type]


class PassedFields(NamedTuple):
    """The fields of an endpoint that a deployment lets pass and its workers know."""

    rows: dict[str, Row]
    required: frozenset[str]


_KNOWN: dict[tuple[str, frozenset[str], str], PassedFields] = {}


def known(endpoint: str, allow: frozenset[str], release: str = "") -> PassedFields:
    """Made once for each set of permissions and each release of the workers."""
    made = _KNOWN.get((endpoint, allow, release))
    if made is None:
        fields = [
            field
            for name, field in ENDPOINTS[endpoint].items()
            if field.passes(allow) and not lacks(endpoint, name, release)
        ]
        made = _KNOWN[endpoint, allow, release] = PassedFields(
            {field.name: Row(field, _kinds(field.type)) for field in fields},
            frozenset(field.name for field in fields if field.required),
        )
    return made


def plain(row: Row, value: Any) -> bool:
    """Whether pydantic would give this very value back. False says nothing."""
    kind = type(value)
    if kind in row.kinds:
        if kind is str:
            return bool(value.isascii())  # half a surrogate pair is no text
        return kind is not int or -_INT64 <= value < _INT64
    quick = row.field.quick
    return quick is not None and quick(value)


def _kinds(declared: Any) -> frozenset[type]:
    if typing.get_origin(declared) in (typing.Union, UnionType):
        return frozenset().union(*map(_kinds, typing.get_args(declared)))
    return frozenset({declared}) & _KINDS if isinstance(declared, type) else frozenset()
