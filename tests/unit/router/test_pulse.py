"""The relay rests only while many chunks come, and stops resting when they do not."""

from __future__ import annotations

import asyncio

import pytest

from toolkit.router import pulse


class Clock:
    """Time that only the test and `sleep` move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pulse, "time", clock)
    return clock


async def chunks(clock: Clock, beat: pulse.Pulse, count: int, gap_s: float) -> None:
    for _ in range(count):
        clock.now += gap_s
        beat.beat()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_many_streams_rest_and_few_do_not(clock):
    async def check() -> None:
        beat = pulse.Pulse(0.001)
        await chunks(clock, beat, 1000, 1 / 800)
        assert not clock.rests
        for _ in range(1000):  # six chunks ready in each iteration
            for _ in range(5):
                beat.beat()
            await chunks(clock, beat, 1, 0.0001)
        assert len(clock.rests) > 500
        assert max(clock.rests) <= 0.001
        await chunks(clock, beat, 300, 1 / 800)  # calm again: it has to notice
        clock.rests.clear()
        await chunks(clock, beat, 300, 1 / 800)
        assert not clock.rests

    asyncio.run(check())


def test_zero_is_off(clock):
    async def check() -> None:
        beat = pulse.Pulse(0.0)
        await chunks(clock, beat, 1000, 0.00001)
        assert not clock.rests

    asyncio.run(check())
