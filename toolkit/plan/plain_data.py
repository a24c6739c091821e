"""Deployment files as plain data: changed key by key, written so that they can be launched."""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.launch.state import write_whole
from toolkit.plan.errors import PlanError

Document = dict[str, Any]
"""What a deployment file holds, `router` as a mapping."""
PATHS = (("model", "path"), ("model", "config"), ("router", "profile"))
"""Keys whose relative paths start at the file's folder."""


def normal(data: Document) -> Document:
    """The same file with `router: toolkit` and `model: PATH` written out."""
    document = copy.deepcopy(data)
    for name, key in (("router", "kind"), ("model", "path")):
        if isinstance(document.get(name), str):
            document[name] = {key: document[name]}
    return document


def get(document: Document, *keys: str) -> Any:
    """The value there, None without one."""
    found: Any = document
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def put(document: Document, keys: Sequence[str], value: Any) -> Document:
    """A copy with that value there; None takes the key away."""
    changed = copy.deepcopy(document)
    *outer, last = keys
    inner = changed
    for key in outer:
        inner = inner.setdefault(key, {})
    if value is None:
        inner.pop(last, None)
    else:
        inner[last] = value
    return changed


def arg_key(document: Document, role: str, flag: str) -> tuple[str, str, str]:
    """Where an SGLang flag of a role stands, as the file spells it."""
    given = get(document, role, "args") or {}
    other = flag.replace("-", "_")
    return role, "args", other if other in given else flag


def moved(document: Document, folder: Path, target: Path) -> Document:
    """The file as it must read in another folder: relative paths that lead somewhere, absolute."""
    if folder.resolve() == target.resolve():
        return document
    for keys in PATHS:
        text = get(document, *keys)
        if not isinstance(text, str) or text == "embedded" or text.startswith("~"):
            continue
        place = folder / text
        if place.exists():
            document = put(document, keys, str(place.resolve()))
    return document


def write(path: Path, document: Document, comment: Sequence[str], force: bool = False) -> None:
    """The deployment file with comment lines at its head, whole or not at all.

    PlanError: the file is there and not to be overwritten, or cannot be written.
    """
    import yaml

    refuse(path, force)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment)
    text = head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    mask = os.umask(0)
    os.umask(mask)
    try:
        write_whole(path, text, 0o666 & ~mask)
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}") from error


def refuse(path: Path, force: bool) -> None:
    """PlanError: what cannot be written there, said before anything is computed."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise PlanError(f"{path} is no place for a file: give the name of a file in a folder")
    if path.exists() and not force:
        raise PlanError(f"{path} is there already: give another name, or --force")
