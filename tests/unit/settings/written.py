"""Deployment files as a test writes them, and what is said of a wrong one."""

from pathlib import Path

import pytest

from toolkit.launch.errors import LaunchError
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment


def load(folder: Path, text: str) -> Deployment:
    """The deployment of the file d.yaml, whose first line is its name."""
    file = folder / "d.yaml"
    file.write_text(f"name: a\n{text}\n")
    return load_deployment(file)


def problems_of(folder: Path, text: str) -> list[str]:
    """From the line's number on."""
    with pytest.raises(LaunchError) as caught:
        load(folder, text)
    return [str(p).removeprefix(f"{folder}/d.yaml:") for p in caught.value.problems]
