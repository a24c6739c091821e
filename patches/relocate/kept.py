"""The last map that was complete on every rank, in a file for the next start."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.contract.variables import RELOCATE_VARIABLE

FLAG = "--init-expert-location"


def place() -> Path | None:
    """The file; None for a server of several machines, which would have to agree about it."""
    path = Path(os.environ.get(RELOCATE_VARIABLE, ""))
    return path if path.is_absolute() else None


def write(path: Path, rows: Sequence[Sequence[int]]) -> None:
    """All layers' rows, as `--init-expert-location` reads them; whole or not at all.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps({"physical_to_logical_map": [list(row) for row in rows]}))
    part.replace(path)


def adopt(argv: Sequence[str]) -> list[str]:
    """SGLang's flags, with the kept map in place of the one that they name, where there is one."""
    path = place()
    if path is None or not path.is_file():
        return list(argv)
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word == FLAG:
            skip = True
        elif not word.startswith(f"{FLAG}="):
            kept.append(word)
    return [*kept, FLAG, str(path)]
