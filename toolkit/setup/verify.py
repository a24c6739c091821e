"""Compares an environment's installed packages with the pins, down to their files."""

from __future__ import annotations

import csv
import shutil
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Dict, List

from toolkit.setup.lockfile import normalise


def installed(site_packages: Path) -> Dict[str, Distribution]:
    """Normalised name -> distribution, of everything in one site-packages folder."""
    found: Dict[str, Distribution] = {}
    for distribution in distributions(path=[str(site_packages)]):
        name = distribution.metadata["Name"]
        if name:  # a broken .dist-info has none
            found[normalise(name)] = distribution
    return found


def differing(site_packages: Path, pins: Dict[str, str]) -> List[str]:
    """Pinned packages that are absent or have another version (a `+cpu` suffix aside)."""
    found = installed(site_packages)
    return [
        name
        for name, pin in pins.items()
        if name not in found or found[name].version.split("+")[0] != pin.split("+")[0]
    ]


def forget_damaged(site_packages: Path, pins: Dict[str, str]) -> None:
    """Pinned packages that lack a file which they installed count as absent from now on.

    An install that was killed half-way leaves such packages, and uv and pip believe them.
    """
    for info in site_packages.glob("*.dist-info"):
        name = normalise(info.name.split("-")[0])
        if name in pins and not _whole(Distribution.at(info)):
            shutil.rmtree(info)


def _whole(distribution: Distribution) -> bool:
    # Not `distribution.files`: from Python 3.12 on it leaves out what is missing.
    record = distribution.read_text("RECORD")
    if not record:
        return False
    names = [row[0] for row in csv.reader(record.splitlines()) if row]
    # Byte code is made again when needed; some tools clear it.
    return all(
        Path(str(distribution.locate_file(name))).exists()
        for name in names
        if not name.endswith(".pyc")
    )
