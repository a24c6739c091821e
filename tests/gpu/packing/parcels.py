"""Files cut into parcels of a bounded size, in their order: what is needed first comes first."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tests.gpu.packing.manifest import BLOCK, Piece

ROOM = 256 * 1024
"""Of each parcel, for the manifest and the names."""


class Cutter:
    """Writes pieces to `folder`/parcel-NN, none of which takes more than `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        assert limit > ROOM
        self._folder, self._limit = folder, limit - ROOM
        self._number, self._left = 0, 0

    def add(self, file: Path, name: str) -> tuple[Piece, ...]:
        """Its pieces: one where it fits into what is left of a parcel, else as few as can be."""
        size, pieces, offset = file.stat().st_size, list[Piece](), 0
        with file.open("rb") as source:
            while offset < size:
                if self._left == 0:
                    self._number, self._left = self._number + 1, self._limit
                count = min(self._left, size - offset)
                whole = count == size
                own = name if whole else f"{name}.{len(pieces):02d}"
                parcel = f"parcel-{self._number:02d}"
                (self._folder / parcel).mkdir(parents=True, exist_ok=True)
                digest = self._copy(source, self._folder / parcel / own, count)
                pieces.append(Piece(parcel, own, offset, count, digest))
                offset += count
                self._left -= count
        return tuple(pieces)

    @staticmethod
    def _copy(source: BinaryIO, target: Path, count: int) -> str:
        digest, left = hashlib.sha256(), count
        with target.open("wb") as sink:
            while left:
                block = source.read(min(BLOCK, left))
                digest.update(block)
                sink.write(block)
                left -= len(block)
        return digest.hexdigest()


def joined(pieces: Sequence[tuple[Piece, Path]], target: Path) -> None:
    """Write a file from its pieces, which are all there."""
    with target.open("wb") as sink:
        for _, path in sorted(pieces, key=lambda pair: pair[0].offset):
            with path.open("rb") as source:
                while block := source.read(BLOCK):
                    sink.write(block)
