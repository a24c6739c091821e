"""Deployment files as plain data, changed key by key."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Document = dict[str, Any]
"""What a deployment file holds, `router` as a mapping."""
SHORT = (("router", "kind"), ("model", "path"), ("speculative", "draft"))
"""Sections for which a text may stand, and the key that it means."""
FOUND = (
    ("model", "path"),
    ("model", "config"),
    ("router", "profile"),
    ("speculative", "draft"),
)
"""Keys whose relative paths start at the file's folder, where something is there: else it is a
model's name on a hub."""
NAMED = (
    ("worker_key_file",),
    ("router", "api_keys_file"),
    ("router", "admin_key_file"),
    ("router", "record"),
    ("router", "record_decisions"),
)
"""The same, whatever is there."""


def normal(data: Mapping[str, Any]) -> Document:
    """The same file with `router: toolkit`, `model: PATH` and `speculative: PATH` written out."""
    document = copy.deepcopy(dict(data))
    for name, key in SHORT:
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


def absolute(document: Document, folder: Path) -> Document:
    """The file, which lies in that folder, as it may lie in any."""
    for keys in (*FOUND, *NAMED):
        text = get(document, *keys)
        if not isinstance(text, str) or text == "embedded" or text.startswith("~"):
            continue
        place = folder / text
        if keys in NAMED or place.exists():
            document = put(document, keys, str(place.resolve()))
    return document


def moved(document: Document, folder: Path, target: Path) -> Document:
    """The file as it must read in another folder."""
    same = folder.resolve() == target.resolve()
    return document if same else absolute(document, folder)
