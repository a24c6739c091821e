"""Wheels for the other machine's Python, from the index that pip is configured for."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.gpu.errors import GpuCheckError
from tests.gpu.packing.wanted import PLATFORMS, PYTHON, SYSTEM
from toolkit.setup.installer import explain


def wheels(wanted: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Download these versions into `folder`; what lies there already is not fetched again.

    GpuCheckError: the index has not what is wanted, or does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps",
        "--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp",
        "--python-version", PYTHON, "--find-links", str(folder), "--dest", str(folder),
    ]  # fmt: skip
    for platform in PLATFORMS:
        command += ["--platform", platform]
    command += [f"{name}=={version}" for name, version in wanted.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GpuCheckError(explain(done.stdout + done.stderr))
    return {name: wheel_of(name, version, folder) for name, version in wanted.items()}


def wheel_of(name: str, version: str, folder: Path) -> Path:
    """The one wheel of that project and version there. GpuCheckError: there is none."""
    from toolkit.setup.lockfile import normalise

    for path in sorted(folder.glob("*.whl")):
        project, its, *_ = path.name.split("-")
        if normalise(project) == normalise(name) and its == version:
            return path
    raise GpuCheckError(f"{folder} has no wheel of {name} {version}")


def system_packages(folder: Path) -> tuple[list[Path], str]:
    """Debian packages of SYSTEM in `folder`, and why there are none, or ""."""
    have = [path for name in SYSTEM for path in folder.glob(f"{name}_*.deb")]
    if len(have) == len(SYSTEM):
        return have, ""
    if shutil.which("apt-get") is None:
        return [], "no apt-get here"
    done = subprocess.run(
        ["apt-get", "download", *SYSTEM], cwd=folder, capture_output=True, text=True, check=False
    )
    have = [path for name in SYSTEM for path in folder.glob(f"{name}_*.deb")]
    if done.returncode or len(have) != len(SYSTEM):
        return [], (done.stderr.strip().splitlines() or ["apt-get said nothing"])[-1]
    return have, ""
