"""What is wrong in a settings file, for people: where, what, and how to repair it."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from toolkit.settings.renamed import new_name
from toolkit.settings.yaml_lines import Location, line_of


class Wrong(NamedTuple):
    """One thing: the file and line, the key with its section, what is wrong with it; `instead`:
    what to write for a key that nobody knows, else empty."""

    where: str
    key: str
    what: str
    instead: str = ""


def wrong(
    error: ValidationError, path: Path, lines: Mapping[Location, int], shape: type[BaseModel]
) -> Iterator[Wrong]:
    """All that makes a YAML file no `shape`."""
    for item in error.errors():
        at = tuple(part if isinstance(part, int) else str(part) for part in item["loc"])
        line = line_of(lines, at)
        where, dotted = f"{path}:{line}" if line else str(path), ".".join(map(str, at))
        if item["type"] == "extra_forbidden":
            yield Wrong(where, dotted, "unknown key", instead(shape, at))
        else:
            yield Wrong(where, dotted, item["msg"].removeprefix("Value error, "))


def instead(shape: type[BaseModel], at: Location) -> str:
    """What to write for a key that `shape` does not know."""
    if new := new_name(at):
        return f"it is now {new!r}"
    known = sorted(keys_at(shape, at[:-1]))
    near = difflib.get_close_matches(str(at[-1]), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


def keys_at(shape: type[BaseModel], at: Location) -> set[str]:
    """Keys that `shape` knows at this place."""
    for part in at:
        field = shape.model_fields.get(str(part))
        for inner in _parts(field.annotation) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                shape = inner
    return {name for name, field in shape.model_fields.items() if not field.exclude}


def _parts(annotation: object) -> list[object]:
    """A type and all types inside it."""
    inside = [part for each in get_args(annotation) for part in _parts(each)]
    return [annotation, *inside]
