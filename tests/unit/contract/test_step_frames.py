"""Frames of pieces are read as they were written, however they are cut on the way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contract.step_frames import BY_ITSELF, ENDED, PIECE_MAX, NotPieces, Pieces, head

NUMBERS = st.integers(0, 2**32 - 1)
SAID = st.tuples(NUMBERS, st.one_of(st.binary(max_size=40), st.sampled_from([ENDED, BY_ITSELF])))


def written(number: int, said: bytes | int) -> bytes:
    return head(number, said) if isinstance(said, int) else head(number, len(said)) + said


@given(st.lists(SAID, max_size=30), st.data())
def test_any_pieces_cut_anywhere_are_read_as_they_were_written(
    said: list[tuple[int, bytes | int]], data: st.DataObject
) -> None:
    raw = b"".join(written(*each) for each in said)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=20))
    edges = [0, *sorted(cuts), len(raw)]
    pieces = Pieces()
    read: list[tuple[int, bytes | int]] = []
    for begin, end in pairwise(edges):
        before = len(read)
        read += pieces.read(raw[begin:end])
        whole = sum(len(written(*each)) for each in said[: len(read)])
        assert whole <= end, "nothing is read before it is whole"
        if len(read) < len(said):
            assert end < whole + len(written(*said[len(read)])), "and all that is"
        assert len(read) >= before
    assert read == said


def test_a_large_piece_is_looked_at_once_whole() -> None:
    piece, pieces = bytes(2**20), Pieces()
    raw = head(7, len(piece)) + piece
    for at in range(0, len(raw) - 1000, 1000):
        assert pieces.read(raw[at : at + 1000]) == []
    left = len(raw) % 1000 or 1000
    assert pieces.read(raw[-left:] + head(7, ENDED)) == [(7, piece), (7, ENDED)]


@pytest.mark.parametrize("size", [PIECE_MAX + 1, BY_ITSELF - 1])
def test_a_size_beyond_the_bound_is_refused(size: int) -> None:
    with pytest.raises(NotPieces):
        Pieces().read(head(1, size))
