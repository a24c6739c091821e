"""A listener that does not read costs a worker so many bytes at most, and others nothing."""

import pytest

from patches.streams import expert_stream, outlet
from patches.streams.expert_stream import ExpertHub
from patches.streams.outlet import Outlet
from toolkit.contract.frames import DroppedHead, PingHead, decode_head

MIB = 2**20


async def test_what_nobody_reads_is_dropped_by_bytes_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expert_stream, "MAX_BACKLOG_BYTES", 8 * MIB)
    hub = ExpertHub(lambda steps: None)
    deaf, reader = hub.subscribe(0.0), hub.subscribe(0.5)
    for listener in (deaf, reader):
        await anext(listener)
    heard = most = 0
    for _ in range(40):
        hub.publish(PingHead(), b"x" * MIB)
        heard += len(await anext(reader)) > MIB
        most = max([most, *(each.size for each in hub._listeners)])
    assert heard == 40
    assert most <= 8 * MIB + 1024
    waited = [await anext(deaf) for _ in range(7)]
    assert all(len(frame) > MIB for frame in waited)
    told = decode_head(await anext(deaf))
    assert isinstance(told, DroppedHead)
    assert told.frames == 33 and 33 * MIB < told.size < 34 * MIB
    # It hears of the next ones again, behind what it missed.
    for size in (9 * MIB, 1, 2):
        hub.publish(PingHead(), b"x" * size)
    assert [len(await anext(deaf)) > 9 * MIB for _ in range(2)] == [True, False]
    assert [len(await anext(reader)) > 9 * MIB for _ in range(3)] == [True, False, False]
    # A frame that alone is larger than the bound gets through, as nothing else waits.
    hub.publish(PingHead(), b"x" * 9 * MIB)
    assert len(await anext(reader)) > 9 * MIB
    assert sorted(each.size > 0 for each in hub._listeners) == [False, True]


def test_lines_that_nobody_takes_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "MAX_BACKLOG_BYTES", 8 * MIB)
    waiting = Outlet()
    sizes = []
    for _ in range(100):
        waiting.put(b"x" * MIB)
        sizes.append(sum(map(len, waiting._waiting)))
        assert waiting._size == sizes[-1]
    assert max(sizes) <= 8 * MIB
    assert sizes[-1] == 0 and waiting._closed
