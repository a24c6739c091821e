"""Frames between the processes of a router: each message once and in its turn, or the link
breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.contract.request_class import RequestClass
from toolkit.policies.base import RequestView
from toolkit.router.processes import wire
from toolkit.router.processes.link import LENGTH, MOST, ProcessLink


class End:
    """One end of a link; what came is kept."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.is_lost = False

    def linked(self, link: ProcessLink[Any]) -> None:
        pass

    def take(self, link: ProcessLink[Any], message: Any) -> None:
        self.came.append(message)
        if message == wire.WireLook(-1):
            raise ValueError("as asked")

    def lost(self, link: ProcessLink[Any]) -> None:
        self.is_lost = True


class Wire(asyncio.Transport):
    """Where a link writes, and whether it was broken."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)


def link_of(end: End) -> tuple[ProcessLink[Any], Wire]:
    link, transport = ProcessLink[Any](wire.DeciderFrame, end), Wire()
    link.connection_made(transport)
    return link, transport


def frame(serial: int, *messages: Any) -> bytes:
    raw = msgspec.msgpack.encode((serial, messages))
    return len(raw).to_bytes(LENGTH, "little") + raw


async def test_what_is_said_in_one_turn_is_one_frame() -> None:
    link, transport = link_of(End())
    for number in range(3):
        link.send(wire.WireLook(number))
    assert not transport.written
    await asyncio.sleep(0)
    first = bytes(transport.written)
    link.send(wire.WireLook(3))
    await asyncio.sleep(0)
    other, end = link_of(theirs := End())[0], theirs
    other.data_received(first)
    assert end.came == [wire.WireLook(number) for number in range(3)]
    other.data_received(bytes(transport.written[len(first) :]))
    assert end.came[-1] == wire.WireLook(3)
    assert link.unsent == len(transport.written)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=20),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
)
def test_frames_that_come_twice_or_out_of_turn_never_do_harm(
    serials: list[int], cuts: list[int]
) -> None:
    """However the bytes are cut: each message once, in its turn, until one is missing."""
    raw = b"".join(frame(serial, wire.WireLook(serial)) for serial in serials)
    end = End()
    link, transport = link_of(end)
    at = 0
    for cut in (*cuts, len(raw)):
        if not transport.aborted:  # a broken link gives nothing more
            link.data_received(raw[at : at + cut])
        at += cut
    expected, last, broken = [], 0, False
    for serial in serials:
        if serial == last + 1:
            expected.append(wire.WireLook(serial))
            last = serial
        elif serial > last + 1:
            broken = True
            break
    assert end.came == expected
    assert transport.aborted is broken


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_nonsense_breaks_the_link_and_nothing_else(raw: bytes) -> None:
    end = End()
    link, transport = link_of(end)
    link.data_received(len(raw).to_bytes(LENGTH, "little") + raw)
    assert end.came == [] or not transport.aborted


def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    link, transport = link_of(End())
    link.data_received((MOST + 1).to_bytes(LENGTH, "little"))
    assert transport.aborted


def test_a_message_that_goes_wrong_takes_no_other_along() -> None:
    end = End()
    link, transport = link_of(end)
    link.data_received(frame(1, wire.WireLook(-1), wire.WireLook(2)))
    assert end.came == [wire.WireLook(-1), wire.WireLook(2)] and not transport.aborted


async def test_what_is_said_to_nobody_is_gone() -> None:
    link, transport = link_of(End())
    link.connection_lost(None)
    link.send(wire.WireLook(1))
    await asyncio.sleep(0)
    assert not transport.written


@pytest.mark.parametrize("blocks", [(), (1, 2**63)])
def test_a_request_s_view_comes_across_whole(blocks: tuple[int, ...]) -> None:
    view = RequestView(
        prompt_tokens=7, cached_tokens=3, blocks=blocks, user="u", label="l", max_new_tokens=5,
        min_new_tokens=2, prompt_hash=2**64 - 1, now=1.5, request_class=RequestClass.BEST_EFFORT,
    )  # fmt: skip
    raw = msgspec.msgpack.encode(wire.WireView.of(view))
    assert msgspec.msgpack.decode(raw, type=wire.WireView).view() == view
