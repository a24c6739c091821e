"""Which folder is the project's and where its environment lies."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict


@dataclass(frozen=True)
class SetupLayout:
    """The paths that the set-up reads and writes, all inside one checkout."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Of the Python that runs now: the set-up makes the environment with that one."""
        version = "python%d.%d" % sys.version_info[:2]
        return self.venv / "lib" / version / "site-packages"

    @property
    def stamp(self) -> Path:
        return self.venv / "toolkit-setup.json"

    @property
    def log(self) -> Path:
        return self.venv / "toolkit-setup.log"

    @property
    def lock(self) -> Path:
        """Held while one set-up runs; outside .venv, which a set-up may remove."""
        return self.root / ".setup.lock"

    @property
    def requirements(self) -> Path:
        return self.root / "toolkit" / "setup" / "cpu.lock"

    @property
    def pyproject(self) -> Path:
        return self.root / "pyproject.toml"


def here() -> SetupLayout:
    """The checkout that this file belongs to."""
    return SetupLayout(Path(__file__).resolve().parents[2])


def tool_environment() -> Dict[str, str]:
    """The environment for pip and the tools: nothing that leads them to other packages.

    And they keep what they compile, whatever the machine says: the tests start many processes, and
    pytest alone takes four seconds longer without.
    """
    drop = (
        "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER",
        "PYTHONDONTWRITEBYTECODE",
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in drop}
