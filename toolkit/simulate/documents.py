"""YAML files of the simulator: strict, with the line of what is wrong."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError

from toolkit.launch.errors import LaunchError
from toolkit.settings.yaml_lines import line_of, read_document
from toolkit.simulate.errors import SimulateError

Shape = TypeVar("Shape", bound=BaseModel)


def read(path: Path, shape: type[Shape]) -> Shape:
    """The file as `shape`. SimulateError: every problem, each with its line."""
    try:
        data, lines = read_document(path)
    except LaunchError as error:
        raise SimulateError(str(error)) from error
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        said = []
        for item in error.errors():
            at = tuple(str(part) if not isinstance(part, int) else part for part in item["loc"])
            line = line_of(lines, at)
            dotted = ".".join(str(part) for part in at)
            text = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                text = _unknown(shape, at)
            said.append(f"{path}:{line}: {dotted}: {text}" if line else f"{path}: {dotted}: {text}")
        raise SimulateError("\n".join(said)) from error


def _unknown(shape: type[BaseModel], at: tuple[str | int, ...]) -> str:
    known = sorted(_fields(shape, at[:-1]))
    near = difflib.get_close_matches(str(at[-1]), known, n=1, cutoff=0.5)
    return f"unknown key: did you mean {near[0]!r}?" if near else f"unknown key: {', '.join(known)}"


def _fields(shape: type[BaseModel], at: tuple[str | int, ...]) -> set[str]:
    """Keys that are known there."""
    for part in at:
        if isinstance(part, int):
            continue
        field = shape.model_fields.get(part)
        found = [field.annotation, *get_args(field.annotation)] if field is not None else []
        inner = [x for x in found if isinstance(x, type) and issubclass(x, BaseModel)]
        if not inner:
            return set()
        shape = inner[0]
    return set(shape.model_fields)
