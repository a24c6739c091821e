"""Read a deployment file."""

from pathlib import Path

from pydantic import ValidationError

from toolkit.errors import LaunchError, Problem
from toolkit.settings.deployment import ROLES, Deployment
from toolkit.settings.explain import Wrong, wrong
from toolkit.settings.yaml_lines import line_of, read_document


def load_deployment(path: str | Path) -> Deployment:
    """Read and check a deployment file. Raises LaunchError with every problem at once."""
    path = Path(path)
    data, lines = read_document(path)
    if "folder" in data:
        where = f"{path}:{line_of(lines, ('folder',))}"
        raise LaunchError([Problem(where, "unknown key 'folder'", "remove it")])
    try:
        return Deployment(**{**data, "folder": path.resolve().parent})
    except ValidationError as error:
        found = wrong(error, path, lines, Deployment)
        raise LaunchError([_problem(each) for each in found]) from error


def _problem(wrong: Wrong) -> Problem:
    where, key, what, repair = wrong
    if not repair:
        return Problem(where, f"{key}: {what}" if key else what)
    section, _, name = key.partition(".")
    if section in ROLES and name and "." not in name:
        repair += f" (SGLang's own flags go under {section}.args)"
    return Problem(where, f"{what} {key!r}", repair)
