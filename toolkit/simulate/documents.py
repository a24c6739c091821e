"""YAML files of the simulator: strict, with the line of what is wrong."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from toolkit.errors import LaunchError
from toolkit.settings.explain import Wrong, wrong
from toolkit.settings.yaml_lines import read_document
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
        found = wrong(error, path, lines, shape)
        raise SimulateError("\n".join(map(_line, found))) from error


def _line(wrong: Wrong) -> str:
    return ": ".join(part for part in wrong if part)
