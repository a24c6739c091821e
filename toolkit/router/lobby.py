"""All connections of clients: how many there may be, and which have to make room.

When all are taken, those that have been idle longest make room: a stranger who opens connections
and says nothing keeps nobody out. Where clients have keys, connections that have not shown one yet,
strangers, get a share of all (`STRANGERS`), and each newcomer of too many takes the place of
another one, whatever that does (`toolkit.router.strangers`). A client that does not take what is
written to it is dropped (`toolkit.router.stalls`).
"""

import asyncio
from time import monotonic
from typing import Protocol

from toolkit.router.quiet import Tally
from toolkit.router.stalls import Stalls
from toolkit.router.strangers import Strangers
from toolkit.router.time_limit import after_rounds

SWEEP_S = 0.5
IDLE_S = 1.0
"""A connection that has been idle for less is not closed to make room."""
SHED = 64
"""Connections that are closed at a time to make room."""
STRANGERS = 0.5
"""Share of all connections for those without a key, where clients have keys."""
LOOKS = 4
"""How often in `write_stall_s` all connections are looked at, at most every LOOK_S."""
LOOK_S = 0.25


def strangers_of(most: int, keys: bool, processes: int = 1) -> int:
    """Connections without a key that one of so many processes may have, where clients have
    `keys`."""
    return max(1, int(most * STRANGERS / processes)) if keys else 0


class Guest(Protocol):
    """A client's connection, as the lobby needs it."""

    @property
    def address(self) -> str: ...
    @property
    def idle(self) -> bool: ...
    def is_stalled(self, known: Stalls, now: float) -> bool: ...
    def too_late(self) -> None: ...
    def drop(self) -> None: ...


class ConnectedElsewhere(Protocol):
    """Connections of clients that other processes of this router have, of as many."""

    @property
    def connections(self) -> int: ...


class NobodyElsewhere:
    """This process is all of the router."""

    connections = 0


class Lobby:
    """All connections of clients, and the clock of those whose head is not complete."""

    def __init__(
        self,
        most: int,
        head_s: float,
        stall_s: float,
        strangers: int = 0,
        elsewhere: ConnectedElsewhere | None = None,
    ) -> None:
        """`stall_s`: how long a client may take nothing of what waits for it; `strangers`: most
        connections without a key, 0 where clients have none."""
        self.most = most
        self._elsewhere = elsewhere or NobodyElsewhere()
        self.head_s = head_s
        self.stalls = Stalls(stall_s)
        self.open: dict[Guest, float] = {}
        """With the time of the last request's head; those that had none for longest come first."""
        self.heads: dict[Guest, float] = {}
        """Deadlines of heads, the nearest first."""
        self.strangers: Strangers[Guest] = Strangers(strangers or most)
        self.live: set[Guest] = set()
        """Also those that are being closed."""
        self.stalled = Tally("connections dropped, since their clients took nothing any more")
        self.crowded = Tally("connections without a key closed, since there are too many of them")
        self.full = Tally("connections refused, since there are too many")
        self.malformed = Tally("requests refused, since they are not HTTP")
        self._shed_at = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None

    def enter(self, connection: Guest) -> bool:
        now = monotonic()
        if len(self.open) + self._elsewhere.connections >= self.most and not self._make_room():
            self.full.add()
            return False
        self.live.add(connection)
        self._make_way(self.strangers.add(connection, connection.address))
        self.open[connection] = now
        self.heads[connection] = now + self.head_s
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(
                SWEEP_S, after_rounds, self._sweep
            )
        if self._looker is None:
            self._look_later()
        return True

    def welcome(self, connection: Guest) -> None:
        """It has shown a key."""
        self.strangers.remove(connection)

    def begun(self, connection: Guest) -> None:
        """The first bytes of a head have come."""
        if connection in self.open:
            self.heads.setdefault(connection, monotonic() + self.head_s)

    def headed(self, connection: Guest) -> None:
        """A head is complete."""
        self.heads.pop(connection, None)
        if self.open.pop(connection, None) is not None:
            self.open[connection] = monotonic()

    def leave(self, connection: Guest) -> None:
        """It counts no more."""
        self.open.pop(connection, None)
        self.heads.pop(connection, None)
        self.strangers.remove(connection)

    def lost(self, connection: Guest) -> None:
        """It is closed."""
        self.leave(connection)
        self.live.discard(connection)
        self.stalls.forget(connection)

    def keep_room(self, count: int) -> None:
        """Close some that are idle where fewer than `count` more may come."""
        if len(self.open) + self._elsewhere.connections + count > self.most:
            self._make_room()

    def _make_way(self, stranger: Guest | None) -> None:
        if stranger is not None:
            self.crowded.add()
            self.leave(stranger)
            stranger.drop()

    def _make_room(self) -> bool:
        """Close some that are idle; looked for a few times a second at most."""
        now = monotonic()
        if now - self._shed_at < 0.1:
            return False
        self._shed_at = now
        idle: list[Guest] = []
        for connection, since in self.open.items():
            if now - since < IDLE_S or len(idle) == SHED:
                break
            if connection.idle:
                idle.append(connection)
        for connection in idle:
            self.leave(connection)
            connection.drop()
        return bool(idle)

    def _look_later(self) -> None:
        pause = max(LOOK_S, self.stalls.stall_s / LOOKS)
        self._looker = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        """Drop those who do not take what is written to them."""
        self._looker = None
        now = monotonic()
        for connection in [each for each in self.live if each.is_stalled(self.stalls, now)]:
            self.stalled.add()
            self.leave(connection)
            connection.drop()
        if self.live:
            self._look_later()

    def _sweep(self) -> None:
        self._sweeper = None
        now = monotonic()
        late = []
        for connection, deadline in self.heads.items():
            if deadline > now:
                break
            late.append(connection)
        for connection in late:
            self.heads.pop(connection, None)
            connection.too_late()
        if self.open:
            self._sweeper = asyncio.get_running_loop().call_later(
                SWEEP_S, after_rounds, self._sweep
            )
