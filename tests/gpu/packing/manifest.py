"""What is in the parcels: every file with its size and SHA-256, and where its pieces lie.

Each parcel is a folder with a copy of the manifest, so that any of them can be unpacked first.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.gpu.errors import GpuCheckError

NAME = "manifest.json"
FORMAT = 1
BLOCK = 2**20


@dataclass(frozen=True)
class Piece:
    """A run of a file's bytes, a file of its own in a parcel."""

    parcel: str
    name: str
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Packed:
    """A wheel (or a .deb): `group` is what needs it, `dropped` how many of its files were left out
    and `original` its bytes before."""

    name: str
    group: str
    project: str
    version: str
    bytes: int
    sha256: str
    original: int
    dropped: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Manifest:
    sglang: str
    python: str
    arch: str
    files: tuple[Packed, ...]

    def parcels(self) -> dict[str, int]:
        """Bytes of each parcel, without its copy of the manifest."""
        found: dict[str, int] = {}
        for piece in (piece for file in self.files for piece in file.pieces):
            found[piece.parcel] = found.get(piece.parcel, 0) + piece.bytes
        return dict(sorted(found.items()))

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (folder / NAME).write_text(text + "\n")


def read(path: Path) -> Manifest:
    """GpuCheckError: it is no manifest of ours."""
    try:
        told: dict[str, Any] = json.loads(path.read_text())
        if told.pop("format") != FORMAT:
            raise GpuCheckError(f"{path} is of another format: pack again with this checkout")
        files = tuple(
            Packed(**{**file, "pieces": tuple(Piece(**piece) for piece in file["pieces"])})
            for file in told.pop("files")
        )
        return Manifest(**told, files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuCheckError(f"{path} is no manifest ({error!r}): pack again") from error


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
