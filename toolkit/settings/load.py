"""Read a deployment file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from toolkit.errors import LaunchError, Problem
from toolkit.settings.deployment import ROLES, Deployment
from toolkit.settings.explain import problems
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
        found = problems(error, path, lines, Deployment)
        raise LaunchError([_of_role(problem) for problem in found]) from error


def _of_role(problem: Problem) -> Problem:
    """With where SGLang's own flags go, if a key of a role is unknown."""
    for role in ROLES:
        if problem.what.startswith(f"unknown key '{role}.") and problem.what.count(".") == 1:
            mend = f"{problem.mend} (SGLang's own flags go under {role}.args)"
            return replace(problem, mend=mend)
    return problem
