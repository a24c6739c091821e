"""Numbers that all processes of a router see: how many requests each has, and that it goes on.
What bounds all relays together is counted by them.

They lie in memory that has a descriptor: processes have it by fork, and a supervisor that runs new
code by that descriptor. Each process writes its own row only; the supervisor clears that of a
process that has ended. No row is locked: a number may be one request old.
"""

from __future__ import annotations

import mmap
import os
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.router.budget import Budget
from toolkit.router.listener import Listener
from toolkit.router.lobby import Guest, Lobby

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Iterable

ITEM = 8
CELLS = ("places", "batched", "best_effort", "running", "running_batched", "beat", "bytes",
         "connections", "serves")  # fmt: skip
"""Of a row: places that are taken, of those batches and best effort; parts that run, of those
batches; when its event loop last came round (monotonic, ms); bytes that its requests hold; its
connections of clients; and whether it takes new ones (`ACCEPTS`, `RETIRES`; 0: not yet, or it is no
relay)."""
WIDTH = len(CELLS)
PLACES, BATCHED, BEST_EFFORT, RUNNING, RUNNING_BATCHED, BEAT, BYTES, CONNECTIONS, SERVES = range(
    WIDTH
)
ACCEPTS, RETIRES = 1, 2
FRESH_S = 1.0
BATCH = 4
"""Connections that one relay takes in one turn, or may have more than another."""
LEAVE_S = 0.005
"""So long it leaves new ones to others."""


class SharedRows:
    """`rows` of whole numbers, zero at first; made before the fork. `number`: the descriptor of the
    memory, where it is there already."""

    def __init__(self, rows: int, number: int = -1) -> None:
        self.count = rows
        size = rows * WIDTH * ITEM
        if number < 0:
            number = os.memfd_create("toolkit-router")
            os.ftruncate(number, size)
        self.number = number
        self._memory = mmap.mmap(number, size)
        self._cells = memoryview(self._memory).cast("q")

    def get(self, row: int, what: int) -> int:
        return self._cells[row * WIDTH + what]

    def put(self, row: int, what: int, value: int) -> None:
        self._cells[row * WIDTH + what] = value

    def beside(self, row: int, what: int) -> int:
        """Of all other rows together."""
        return sum(self._cells[what::WIDTH]) - self.get(row, what)

    def others(self, row: int) -> list[int]:
        """Connections of each other relay that goes on, and takes new ones."""
        rows = [each for each in self.serving(ACCEPTS) if each != row]
        return [self.get(each, CONNECTIONS) for each in rows if self.still_s(each) < FRESH_S]

    def serving(self, *how: int) -> list[int]:
        """The rows of relays that accept, or retire."""
        return [row for row in range(self.count) if self.get(row, SERVES) in how]

    def clear(self, row: int) -> None:
        """Its process has ended."""
        for what in range(WIDTH):
            self.put(row, what, 0)

    def beat(self, row: int) -> None:
        """Its event loop has come round."""
        self.put(row, BEAT, int(monotonic() * 1000))

    def still_s(self, row: int) -> float:
        """For how long its event loop has not; 0 before the first time."""
        at = self.get(row, BEAT)
        return monotonic() - at / 1000 if at else 0.0


class SharedBudget(Budget):
    """The memory of requests, which all relays share."""

    def __init__(self, most: int, rows: SharedRows, row: int) -> None:
        super().__init__(most, OthersRequests(rows, row))
        self._rows = rows
        self._row = row

    def hold(self, size: int) -> None:
        """Charge `size` more bytes that are held already."""
        super().hold(size)
        self._rows.put(self._row, BYTES, self.held)


class SharedLobby(Lobby):
    """The connections of clients, of which all relays together have so many."""

    def __init__(
        self, most: int, head_s: float, stall_s: float, strangers: int, rows: SharedRows, row: int
    ) -> None:
        super().__init__(most, head_s, stall_s, strangers, OthersRequests(rows, row))
        self._rows = rows
        self._row = row

    def enter(self, connection: Guest) -> bool:
        entered = super().enter(connection)
        self._rows.put(self._row, CONNECTIONS, len(self.open))
        return entered

    def leave(self, connection: Guest) -> None:
        """It counts no more."""
        super().leave(connection)
        self._rows.put(self._row, CONNECTIONS, len(self.open))


class SharedListener(Listener):
    """Listening sockets from which all relays take. One that has more connections than another
    leaves new ones to that for a moment; where there are `most` of them the one that has the most
    makes room."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], most: int, rows: SharedRows, row: int
    ) -> None:
        super().__init__(make, BATCH)
        self._most = most
        self._rows = rows
        self._row = row
        self._left: set[socket.socket] = set()
        """Those that were left to others the last time."""

    def adopt(self, sockets: Iterable[socket.socket]) -> None:
        """Take clients from these, and show it."""
        super().adopt(sockets)
        self._rows.put(self._row, SERVES, ACCEPTS)

    async def stop(self) -> None:
        """No new connections, and show it."""
        self._rows.put(self._row, SERVES, RETIRES)
        await super().stop()

    def _accept(self, listening: socket.socket) -> None:
        own, others = self._rows.get(self._row, CONNECTIONS), self._rows.others(self._row)
        if own + self._rows.beside(self._row, CONNECTIONS) >= self._most:
            leave = any(each > own for each in others)
        else:
            leave = any(each + BATCH < own for each in others)
        if leave and listening not in self._left:
            self._left.add(listening)
            self._pause(listening, LEAVE_S)
            return
        self._left.discard(listening)
        super()._accept(listening)


class OthersRequests:
    """What the other relays have."""

    def __init__(self, rows: SharedRows, row: int) -> None:
        self._rows = rows
        self._row = row

    @property
    def places(self) -> int:
        return self._rows.beside(self._row, PLACES)

    @property
    def batched(self) -> int:
        return self._rows.beside(self._row, BATCHED)

    @property
    def best_effort(self) -> int:
        return self._rows.beside(self._row, BEST_EFFORT)

    @property
    def running(self) -> int:
        return self._rows.beside(self._row, RUNNING)

    @property
    def running_batched(self) -> int:
        return self._rows.beside(self._row, RUNNING_BATCHED)

    @property
    def held(self) -> int:
        return self._rows.beside(self._row, BYTES)

    @property
    def connections(self) -> int:
        return self._rows.beside(self._row, CONNECTIONS)

    def tell(self, places: int, batched: int, best_effort: int, running: int, wide: int) -> None:
        """What this one has."""
        rows, row = self._rows, self._row
        for what, value in enumerate((places, batched, best_effort, running, wide)):
            rows.put(row, what, value)
