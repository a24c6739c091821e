"""Every key of a deployment file: type, default, meaning, and where it can act."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from toolkit.settings.acting import conditions
from toolkit.settings.deployment import ROLES, Deployment
from toolkit.settings.devices import CUDA

_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false"}


class Key(NamedTuple):
    """One key of a deployment file. `where`: what it acts with; empty: everywhere."""

    path: str
    type: str
    default: str
    meaning: str
    where: str = ""


def keys() -> list[Key]:
    """All of them; keys of the three roles are listed once, under `ROLE`."""
    return list(_keys(Deployment, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        path, meaning = f"{prefix}{name}", field.description or ""
        if prefix in ("router.", "restart.") and name in CUDA:
            meaning += f"; with `device: cuda` {CUDA[name]:g}"
        inner = _section(field.annotation)
        if inner is None:
            yield Key(path, _type(field.annotation), _default(field), meaning, conditions(path))
            continue
        yield Key(path, "mapping", "", meaning, conditions(path))
        if path in ROLES[1:]:
            continue  # the same keys as the first one's
        mapping = get_origin(field.annotation) is dict
        yield from _keys(
            inner, "ROLE." if path in ROLES else f"{path}.NAME." if mapping else f"{path}."
        )


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section that the annotation names, alone, as values of a mapping, or where it is set."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value not in ((), {}, frozenset()) else "none"


def _type(annotation: Any) -> str:
    arguments, origin = get_args(annotation), get_origin(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if origin in (list, tuple, frozenset):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if arguments:  # a union
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return "mappings" if section else str(getattr(annotation, "__name__", annotation))
