"""An old key is refused, and the error names the new one: over the whole table."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.errors import LaunchError
from toolkit.settings.explain import keys_at
from toolkit.settings.load import load_deployment
from toolkit.settings.renamed import RENAMED
from toolkit.settings.router.config import ConfigError, RouterConfig
from toolkit.settings.router.load import load_config
from toolkit.settings.table import keys

EVERY = [(section, old, new) for section, names in RENAMED.items() for old, new in names.items()]
PATHS = {key.path for key in keys()}


def nested(section: str, key: str, roles: str) -> dict[str, Any]:
    """A mapping with this key in this section."""
    found: dict[str, Any] = {key: 1}
    for part in reversed(section.split(".") if section else []):
        found = {{"ROLE": roles, "NAME": "n0"}.get(part, part): found}
    return found


@pytest.mark.parametrize(("section", "old", "new"), EVERY)
def test_the_table_leads_from_keys_that_went_to_keys_that_there_are(
    section: str, old: str, new: str
) -> None:
    dot = f"{section}." if section else ""
    assert f"{dot}{new}" in PATHS
    assert f"{dot}{old}" not in PATHS


@pytest.mark.parametrize(("section", "old", "new"), EVERY)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_old_key_of_a_deployment_file_names_the_new_one(
    tmp_path: Path, section: str, old: str, new: str, role: str
) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(yaml.safe_dump({"name": "a", **nested(section, old, role)}))
    with pytest.raises(LaunchError) as caught:
        load_deployment(file)
    (problem,) = [p for p in caught.value.problems if p.what.startswith("unknown key")]
    assert problem.what.endswith(f"{old}'") and problem.repair.startswith(f"it is now '{new}'")
    line = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if f"{old}:" in text)
    assert problem.where == f"{file}:{line}"


@pytest.mark.parametrize(("section", "old", "new"), EVERY)
def test_an_old_key_of_the_routers_file_names_the_new_one(
    tmp_path: Path, section: str, old: str, new: str
) -> None:
    inside = section.removeprefix("router").removeprefix(".")
    at = tuple(inside.split(".")) if inside else ()
    if not section.startswith("router") or new not in keys_at(RouterConfig, at):
        return  # not of the router's file
    file = tmp_path / "router.json"
    file.write_text(json.dumps({"workers": [], **nested(inside, old, "")}))
    with pytest.raises(ConfigError, match=f"{old}: it is now '{new}'"):
        load_config(file)


def test_there_is_something_to_check() -> None:
    assert EVERY
