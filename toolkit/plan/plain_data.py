"""Deployment files that are written, whole or not at all."""

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.launch.state import write_whole
from toolkit.plan.errors import PlanError
from toolkit.settings.document import Document, get


def arg_key(document: Document, role: str, flag: str) -> tuple[str, str, str]:
    """Where an SGLang flag of a role stands, as the file spells it."""
    given = get(document, role, "args") or {}
    other = flag.replace("-", "_")
    return role, "args", other if other in given else flag


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
