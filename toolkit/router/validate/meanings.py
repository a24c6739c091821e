"""What SGLang's declarations of fields and models mean in one release: types, as pydantic has them.

Same names, types and validators as SGLang's, so that the list of errors that a client gets is the
one that SGLang gives.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    FailFast,
    PlainValidator,
    StrictBool,
    create_model,
    field_validator,
    model_validator,
)
from pydantic import Field as Bounds
from pydantic.fields import FieldInfo

from toolkit.router.validate.declared import (
    CHECKS,
    DECLARED,
    NAMES,
    RELEASES,
    Types,
    declaration,
    in_release,
    lacks,
)
from toolkit.router.validate.validators import OF_TYPES, TAKEN

_WORD = re.compile(r"\w+")
_NO: dict[str, Types] = {}


class _Either:
    """Stands for `Union`. That of typing keeps one of two that differ in order only."""

    def __class_getitem__(cls, kinds: Any) -> Any:
        return functools.reduce(operator.or_, kinds)


class _Maybe:
    """Stands for `Optional`."""

    def __class_getitem__(cls, kind: Any) -> Any:
        return kind | None


class _FirstOnly(FailFast):
    __hash__ = object.__hash__  # a member of a Union must have one


class _ShortList:
    """Stands for `list` in the models of long bodies."""

    def __class_getitem__(cls, inside: Any) -> Any:
        return Annotated[list[inside], _FirstOnly()]


_SHORT = {"list": _ShortList, "List": _ShortList}
KNOWN: dict[str, Any] = {
    "Annotated": Annotated,
    "Any": Any,
    "Dict": dict,
    "List": list,
    "Literal": Literal,
    "Optional": _Maybe,
    "Set": set,
    "Union": _Either,
    **{kind.__name__: kind for kind in (bool, dict, float, int, list, object, str)},
    **{kind.__name__: kind for kind in (AfterValidator, PlainValidator)},
    "Field": Bounds,
    "StrictBool": StrictBool,
    "field_validator": functools.partial(field_validator, check_fields=False),
    "model_validator": model_validator,
    **OF_TYPES,
}
"""What names in SGLang's declarations mean that `declared.json` does not say."""


class Meanings(dict[str, Any]):
    """What the names in declarations mean in one release; nested models are made as they are
    named."""

    def __init__(self, release: str, long: bool) -> None:
        super().__init__(KNOWN | (_SHORT if long else {}))
        self._release = release

    def __missing__(self, name: str) -> Any:
        stands_for = alias(name, self._release)
        if stands_for:
            self[name] = self.read(stands_for)
        else:
            fields = [each for each in DECLARED[name] if not lacks(name, each, self._release)]
            self[name] = self.model(name, name, {each: self.field(name, each) for each in fields})
        return self[name]

    def read(self, text: str) -> Any:
        """What an expression of the file means."""
        return eval(text, {"__builtins__": {}}, self)

    def field(self, place: str, name: str, typed: bool = True) -> tuple[Any, Any]:
        """Type and default of a field, as `create_model` wants them. The type is Any where nobody
        asks for it."""
        kind, _, behind = declaration(place, name, self._release).partition(" = ")
        default = self.read(behind) if behind else ...
        if typed:
            return self.read(kind), default
        required = default.is_required() if isinstance(default, FieldInfo) else default is ...
        return Any, ... if required else None

    def checks(self, place: str) -> dict[str, str]:
        """The decorators of those validators of SGLang's that we have, by name."""
        found = {
            name: in_release(texts, self._release)
            for name, texts in CHECKS.get(place, {}).items()
            if f"{place}.{name}" in TAKEN
        }
        return {name: text for name, text in found.items() if text}

    def model(self, title: str, place: str, fields: dict[str, Any]) -> type[BaseModel]:
        """A model with them."""
        checks = {
            name: self.read(text)(TAKEN[f"{place}.{name}"])
            for name, text in self.checks(place).items()
        }
        return create_model(title, __validators__=checks, **fields)


def alias(name: str, release: str) -> str | None:
    """What a name stands for that is no model; what it does later on where it comes later."""
    texts = NAMES.get(name)
    text = in_release(texts, release) if texts else None
    return in_release(texts, "") if texts and not text and name not in DECLARED else text


def reached(texts: Iterable[str], release: str) -> Iterator[tuple[str, str, str]]:
    """What a release says of all that these texts name, and what that names: a name, one of its
    fields or validators, and the text."""
    left, seen = list(texts), set[str]()
    while left:
        for word in _WORD.findall(left.pop()):
            if word in seen:
                continue
            seen.add(word)
            said = {"": alias(word, release)}
            for rows in (DECLARED.get(word, _NO), CHECKS.get(word, _NO)):
                said |= {name: in_release(each, release) for name, each in rows.items()}
            for name, text in said.items():
                if text:
                    left.append(text)
                    yield word, name, text


@functools.cache
def meanings(release: str, long: bool = False) -> Meanings:
    """Made once for each release; of no release (nobody knows) those of the newest. `long`: for
    bodies of which only the first wrong entry of a list is told."""
    return Meanings(release, long) if release else meanings(RELEASES[-1], long)
