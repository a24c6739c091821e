"""What all of a worker's streams say in one turn, on one connection: GET /toolkit/step-frames.

A frame is pieces one behind the other: the number of the stream and the size of the piece, four
bytes each, the least one first, then the piece itself. In place of a size there may be a mark,
behind which nothing stands. The first frame has a mark of stream 0, which is nobody's.
"""

from struct import Struct

PATCH = "step_frames"
ENDED = 0xFFFFFFFF
"""The stream's answer is complete."""
BY_ITSELF = 0xFFFFFFFE
"""The rest of the stream comes as the body of its own answer."""
PIECE_MAX = 2**20
"""Bytes of one piece. What a stream says at once may be several."""
NOBODY = 0
NUMBER_MAX = 2**32 - 1
HEAD_BYTES = 8

_HEAD = Struct("<II")
head = _HEAD.pack
"""Of a piece: the stream's number, then the size or a mark."""


class NotPieces(ValueError):
    """What came is no frame."""


class Pieces:
    """Reads frames, however they were cut on the way."""

    __slots__ = ("_rest", "_wanted")

    def __init__(self) -> None:
        self._rest = bytearray()
        """Of a piece that is not whole."""
        self._wanted = 0
        """Bytes that it needs to be that."""

    def read(self, data: bytes) -> list[tuple[int, bytes | int]]:
        """The number of each stream that said something, and its piece, or its mark.

        Raises:
            NotPieces: a size is beyond PIECE_MAX.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest = bytearray()
        pieces: list[tuple[int, bytes | int]] = []
        at, end, unpack = 0, len(data), _HEAD.unpack_from
        self._wanted = 0
        while at + HEAD_BYTES <= end:
            number, size = unpack(data, at)
            begin = at + HEAD_BYTES
            if size > PIECE_MAX:
                if size < BY_ITSELF:
                    raise NotPieces(f"a piece of {size} bytes")
                pieces.append((number, size))
                at = begin
                continue
            stop = begin + size
            if stop > end:
                self._wanted = stop - at
                break
            pieces.append((number, data[begin:stop]))
            at = stop
        if at < end:
            self._rest += data[at:] if at else data
            self._wanted = self._wanted or HEAD_BYTES
        return pieces
