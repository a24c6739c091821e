"""Requests whose worker has fallen silent, though it still says that it lives."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from toolkit.router.upstream import Call
from toolkit.settings.router.config import RouterConfig

STARVED = 4.0
"""A stream may be silent for this many time-outs while others of its rank are not: it waits for a
slot, or was retracted."""
LOOKS = 8
"""A time-out is noticed with an eighth of it at most."""


class _Watched:
    __slots__ = ("at", "first_s", "heard", "paused", "streams")

    def __init__(
        self, now: float, first_s: float, streams: bool, paused: Callable[[], bool]
    ) -> None:
        self.heard = 0
        self.at = now
        self.first_s = first_s
        self.streams = streams
        self.paused = paused


class Silence:
    """The requests of one rank that computes answers (a decode rank, or a plain one).

    One is given up when neither it nor any other on its rank has had a byte for `first_s` (before
    its first byte) or `idle_s` (after it), and the rank has said of no decode step either; or when
    it alone has had none for STARVED times that. An answer that does not stream sends nothing until
    it is whole: it is judged only on ranks that say what steps they do. A client that is slow to
    read stops its own stream, which does not count.
    """

    def __init__(self, first_s: float, idle_s: float) -> None:
        self._first_s = first_s
        self._idle_s = idle_s
        self._watched: dict[Call, _Watched] = {}
        self._moved_at = 0.0
        self._steps = False

    def watch(
        self,
        call: Call,
        now: float,
        streams: bool,
        late: bool = True,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """From its POST until it is done. `late`: its prefill has run already."""
        first_s = self._first_s if late else self._first_s * STARVED
        self._watched[call] = _Watched(now, first_s, streams, paused)
        call.done.add_done_callback(lambda _: self._watched.pop(call, None))

    def stepped(self, now: float) -> None:
        """The rank has said of decode steps."""
        self._moved_at = now

    def tells(self, steps: bool) -> None:
        """Whether the process that answers now will say what steps it does."""
        self._steps = steps

    def look(self, now: float) -> list[tuple[Call, str]]:
        """Those to be given up, with the reason."""
        for call, watched in self._watched.items():
            if call.heard != watched.heard:
                watched.heard = call.heard
                watched.at = self._moved_at = now
            elif watched.paused():
                watched.at = now
        return [
            (call, f"it has sent nothing for {now - watched.at:.0f} s")
            for call, watched in self._watched.items()
            if self._silent(call, watched, now)
        ]

    def _silent(self, call: Call, watched: _Watched, now: float) -> bool:
        limit = self._idle_s if call.begun else watched.first_s
        own = now - watched.at
        if own <= limit:
            return False
        if not watched.streams:
            return self._steps and now - self._moved_at > limit
        return now - self._moved_at > limit or own > STARVED * limit


async def give_up_silent(ranks: Sequence[Silence], config: RouterConfig) -> None:
    """Look at all ranks from time to time, until cancelled."""
    pause = min(1.0, min(config.first_token_timeout_s, config.idle_timeout_s) / LOOKS)
    while True:
        before = monotonic()
        await asyncio.sleep(pause)
        now = monotonic()
        if now - before > 2 * pause + 1.0:
            continue  # we were held up ourselves: bytes may lie unread
        for rank in ranks:
            for call, why in rank.look(now):
                call.close(why, "silent")
