"""A profile folder on disk: profile.json, arrays.safetensors and report.html."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bounded_files import Unreadable, read_arrays, read_text
from toolkit.profile_folder import document, shapes, swap
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

JSON, ARRAYS, REPORT = "profile.json", "arrays.safetensors", "report.html"
_SHOWN = 6  # problems in one message


def check_target(folder: str | Path) -> Path:
    """`folder` as `write` will use it; call it before measuring for minutes.

    Raises:
        ProfileError: something else than a profile is there, or nothing can be written there.
    """
    target = Path(os.path.realpath(folder))  # a link stays, and what it points to is replaced
    try:
        _check_target(target, folder)
    except OSError as error:  # not even allowed to look
        raise ProfileError(f"{folder} cannot be written: {_advice(error)}") from error
    return target


def _check_target(target: Path, folder: str | Path) -> None:
    if target.exists() and not target.is_dir():
        raise ProfileError(f"{folder} is a file: give the profile a folder of its own")
    if target.is_dir() and not (target / JSON).is_file():
        others = sorted(x.name for x in target.iterdir())
        if others:
            raise ProfileError(
                f"{folder} holds {', '.join(others[:3])}{' ...' if len(others) > 3 else ''} and no "
                f"{JSON}: it is not overwritten, since it is no profile; choose another folder"
            )
    parent = next(x for x in target.parents if x.exists())
    if not parent.is_dir():
        raise ProfileError(f"{parent} is a file, so {folder} cannot be made: choose another folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ProfileError(
            f"{parent} cannot be written: make it writable, or choose another folder"
        )


def write(
    folder: str | Path,
    profile: Profile,
    arrays: Mapping[str, NDArray[Any]],
    report_html: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
) -> None:
    """Writes the folder at once: a killed run leaves the old profile or the new one, whole.

    `files` are more texts for the folder (name -> content), such as placements for SGLang. Files
    that somebody else put into an existing profile folder are carried over.

    Raises:
        ProfileError: arrays do not fit the figures, or the folder cannot be written; says how to
            mend it.
    """
    problems = shapes.figure_problems(profile) + shapes.array_problems(profile, arrays)
    if problems:
        raise ProfileError("the profile does not hold together: " + _listed(problems))
    target = check_target(folder)
    try:
        with swap.replacing(target) as fresh:
            _save(fresh / ARRAYS, arrays)
            text = document.text(profile, _sha256(fresh / ARRAYS))
            (fresh / JSON).write_text(text, "utf-8")
            if report_html is not None:
                (fresh / REPORT).write_text(report_html, "utf-8")
            for name, content in (files or {}).items():
                (fresh / name).write_text(content, "utf-8")
            _carry_over(target, fresh)
    except OSError as error:
        raise ProfileError(f"{folder} cannot be written: {_advice(error)}") from error


def read(folder: str | Path) -> tuple[Profile, dict[str, NDArray[Any]]]:
    """The profile in `folder` and its arrays.

    Raises:
        ProfileError: no profile, one of another schema version, one edited by hand, or damaged.
    """
    target = Path(os.path.realpath(folder))
    while True:
        place = swap.settled(target)
        before = _identity(place)
        try:
            return _read(place, str(folder))
        except ProfileError:
            # A writer may have swapped the folder between our two files: then look again.
            if before == _identity(swap.settled(target)):
                raise


def _read(place: Path, name: str) -> tuple[Profile, dict[str, NDArray[Any]]]:
    if not place.is_dir():
        raise ProfileError(f"{name} is no folder: make a profile with `toolkit profile`")
    try:
        content = read_text(place / JSON)
    except FileNotFoundError as error:
        raise ProfileError(f"{name} holds no {JSON}: it is not a profile folder") from error
    except (OSError, ValueError) as error:
        raise ProfileError(f"{name}/{JSON} cannot be read: {error}") from error
    whole = document.parse(content, f"{name}/{JSON}")
    arrays_path = place / ARRAYS
    if not arrays_path.is_file():
        raise ProfileError(f"{name} holds no {ARRAYS}: copy the whole folder, not {JSON} alone")
    try:
        if _sha256(arrays_path) != whole.arrays_sha256:
            raise ProfileError(
                f"{name}/{ARRAYS} does not belong to its {JSON}: one of the two was replaced or "
                "damaged. Copy the whole folder again, or measure again with `toolkit profile`"
            )
        arrays = _load(arrays_path)
    except OSError as error:
        raise ProfileError(f"{name}/{ARRAYS} cannot be read: {error.strerror}") from error
    problems = shapes.figure_problems(whole.profile)
    problems += shapes.array_problems(whole.profile, arrays)
    if problems:
        raise ProfileError(f"{name} does not hold together: " + _listed(problems))
    return whole.profile, arrays


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, path)
    except SafetensorError as error:  # the cause's number is only in its text
        found = str(error).rpartition("os error ")[2].rstrip(")")
        raise OSError(int(found) if found.isdigit() else errno.EIO, str(error)) from error
    path.chmod(0o644)  # the library makes it private; a profile is to be shared


def _load(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError

    try:
        return read_arrays(path)
    except (SafetensorError, Unreadable) as error:
        raise ProfileError(f"{path.name} is damaged: {error}") from error


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _carry_over(target: Path, fresh: Path) -> None:
    """Copies what is not ours; our own files of before would be stale beside the new figures."""
    if not target.is_dir():
        return
    for item in target.iterdir():
        ours = item.name in (JSON, ARRAYS, REPORT) or item.match("placement*.json")
        if ours or (fresh / item.name).exists():
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.copytree(item, fresh / item.name, symlinks=True)
        else:
            shutil.copy2(item, fresh / item.name, follow_symlinks=False)


def _advice(error: OSError) -> str:
    words = {
        errno.ENOSPC: "the disk is full. Free some space and run the command again",
        errno.EDQUOT: "your disk quota is used up. Free some space and run the command again",
        errno.EFBIG: "files may not grow that large here (ulimit -f). Raise the limit",
        errno.EROFS: "the file system is read-only. Choose another folder",
        errno.EACCES: "permission denied. Make it writable, or choose another folder",
        errno.EPERM: "not permitted. Make it writable, or choose another folder",
        errno.ENOTDIR: "a file is in the way. Choose another folder",
    }
    said = words.get(error.errno or 0, error.strerror or str(error))
    return f"{said}. The profile that was there before, if any, is untouched"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _listed(problems: list[str]) -> str:
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return "; ".join([*problems[:_SHOWN], *more])
