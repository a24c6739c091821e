"""Keys out of the environment or out of files; the files only where nobody else may read them."""

import os
import re
import stat
from pathlib import Path

from toolkit.errors import ToolkitError

LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+):[ \t]+)?(?P<key>[\x21-\x7e]+)")
EXPOSED = stat.S_IRWXO | stat.S_IWGRP
"""Whoever else may read or change the file has the keys, or gives them."""


class KeysError(ToolkitError, ValueError):
    """A key cannot be had; the message says what to change, and holds no key."""


def one_key(variable: str | None, path: str | None) -> str | None:
    """The key in a variable or in a file's only line; None when neither is named."""
    if variable is not None:
        return from_environment(variable)
    if path is None:
        return None
    keys = client_keys(path)
    if len(keys) != 1:
        raise KeysError(f"{path} holds {len(keys)} keys: leave the one that is to count")
    return keys[0][1]


def from_environment(variable: str) -> str:
    """The key in an environment variable; KeysError when there is none."""
    value = os.environ.get(variable)
    if not value:
        raise KeysError(f"environment variable {variable} is empty; it must hold the key")
    return value


def client_keys(path: str) -> list[tuple[str, str]]:
    """(name, key) of each line `KEY` or `NAME: KEY`; blank lines and `# ...` are passed over.

    Raises KeysError: the file cannot be read, others may read it, a line is no key.
    """
    found: list[tuple[str, str]] = []
    for number, raw in enumerate(_private_text(path).splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise KeysError(
                f"{path}:{number} is neither KEY nor NAME: KEY (a key has no spaces and only ASCII)"
            )
        found.append((match["name"] or f"{Path(path).name}:{number}", match["key"]))
    if not found:
        raise KeysError(f"{path} holds no key: write one a line, as KEY or NAME: KEY")
    if len({key for _, key in found}) < len(found):
        raise KeysError(f"{path} holds the same key twice")
    return found


def _private_text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of the file that is read, not of another
            if mode & EXPOSED:
                raise KeysError(
                    f"{path} has mode {stat.S_IMODE(mode):04o}: others could read or change the "
                    f"keys; chmod 600 {path}"
                )
            return file.read().decode("ascii")
    except OSError as error:
        raise KeysError(f"cannot read the keys in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeysError(f"{path} is no text of keys: byte {error.start} is not ASCII") from error
