"""A wheel without some of its files, still a valid wheel."""

import fnmatch
import zipfile
from collections.abc import Sequence
from pathlib import Path


def slimmed(source: Path, target: Path, patterns: Sequence[str]) -> int:
    """Copy `source` without the files that a pattern names, and without their lines in RECORD;
    returns how many were left out."""
    dropped = 0
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new,
    ):
        left_out = {n for n in old.namelist() if any(fnmatch.fnmatch(n, p) for p in patterns)}
        for info in old.infolist():
            if info.filename in left_out:
                dropped += 1
                continue
            content = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                kept = [line for line in lines if line.split(",")[0] not in left_out]
                content = "".join(kept).encode()
            copy = zipfile.ZipInfo(info.filename, info.date_time)
            copy.external_attr, copy.compress_type = info.external_attr, zipfile.ZIP_DEFLATED
            new.writestr(copy, content)
    return dropped


def metadata(path: Path) -> str:
    """The text of the wheel's METADATA."""
    with zipfile.ZipFile(path) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        return wheel.read(name).decode()


def project_and_version(path: Path) -> tuple[str, str]:
    """By the wheel's file name."""
    name, version = path.name.split("-")[:2]
    return name, version
