"""Read a YAML document and remember the line of every key, for error messages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.bounded_files import Unreadable, check_yaml, read_text
from toolkit.errors import LaunchError, Problem

Location = tuple[str | int, ...]


def read_document(path: Path) -> tuple[dict[str, Any], dict[Location, int]]:
    """The mapping in `path`, and the line (from 1) where each key or list item stands.

    Raises LaunchError when the file is missing, is not YAML, repeats a key (YAML itself would
    silently keep the last one) or does not hold a mapping.
    """
    import yaml

    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        problem = Problem(str(path), f"cannot be read: {why}", "check the path")
        raise LaunchError([problem]) from error
    try:
        check_yaml(text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[Location, int] = {}
        problems: list[Problem] = []
        if node is not None:
            _collect(node, (), lines, problems, path)
        data = loader.construct_document(node) if node is not None else {}
    except Unreadable as error:
        raise LaunchError([Problem(str(path), str(error), "write it out plainly")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise LaunchError([Problem(where, f"not valid YAML: {error}")]) from error
    if problems:
        raise LaunchError(problems)
    if not isinstance(data, dict):
        raise LaunchError([Problem(str(path), "must hold a mapping (key: value lines)")])
    return data, lines


def _collect(
    node: Any, at: Location, lines: dict[Location, int], problems: list[Problem], path: Path
) -> None:
    if node.id == "mapping":
        for key, value in node.value:
            here = (*at, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                what = f"{key.value!r} stands twice (first on line {lines[here]})"
                problems.append(Problem(f"{path}:{line}", what, "keep one of them"))
            lines[here] = line
            _collect(value, here, lines, problems, path)
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            lines[(*at, index)] = value.start_mark.line + 1
            _collect(value, (*at, index), lines, problems, path)


def line_of(lines: Mapping[Location, int], location: Location) -> int | None:
    """The line of the deepest part of `location` that the file holds; None if none does."""
    while location:
        if location in lines:
            return lines[location]
        location = location[:-1]
    return None
