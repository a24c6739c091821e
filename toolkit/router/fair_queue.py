"""Whose turn it is to have a body parsed. No clock, no event loop.

There are a few places (parsing processes). Clients take turns: whoever has waited since its last
turn for longest is next, and within one client what came first goes first. So a client with a
thousand bodies makes another one wait for one of them, not for all.

Large bodies have one place at most, or a few of them would hold all places for seconds; the others
are always for bodies that are small.
"""

from __future__ import annotations

from collections import deque


class QueueTicket:
    """A body's place: in the queue, then at a process, until it is given back."""

    __slots__ = ("client", "large", "runs")

    def __init__(self, client: str, large: bool) -> None:
        self.client = client
        self.large = large
        self.runs = False


class Line:
    """Tickets of many clients, who take turns."""

    def __init__(self) -> None:
        self._clients: dict[str, deque[QueueTicket]] = {}
        """Only clients that wait, whose turn is nearest first."""

    def add(self, ticket: QueueTicket) -> None:
        self._clients.setdefault(ticket.client, deque()).append(ticket)

    def remove(self, ticket: QueueTicket) -> None:
        waiting = self._clients[ticket.client]
        waiting.remove(ticket)
        if not waiting:
            del self._clients[ticket.client]

    def pop(self) -> QueueTicket | None:
        """The next one; its client goes behind all others."""
        client = next(iter(self._clients), None)
        if client is None:
            return None
        waiting = self._clients.pop(client)
        ticket = waiting.popleft()
        if waiting:
            self._clients[client] = waiting
        return ticket


class FairQueue:
    """Tickets for `places`; of one client at most `each` wait."""

    def __init__(self, places: int, each: int) -> None:
        if places < 2:
            raise ValueError("it takes two places: large bodies would hold a single one")
        self.places = places
        self.each = each
        self.running = 0
        self._large = 0
        """Of those that run."""
        self._lines = (Line(), Line())
        """Of small and of large bodies."""
        self._waiting: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        return sum(self._waiting.values())

    def enter(self, client: str, large: bool = False) -> QueueTicket | None:
        """A ticket that waits; None where this client has too many of them."""
        count = self._waiting.get(client, 0)
        if count >= self.each:
            return None
        self._waiting[client] = count + 1
        ticket = QueueTicket(client, large)
        self._lines[large].add(ticket)
        return ticket

    def next(self) -> QueueTicket | None:
        """Whose turn it is: it runs from now on. None: all places are taken, or nobody waits."""
        if self.running >= self.places:
            return None
        ticket = self._lines[True].pop() if self._large == 0 else None
        ticket = ticket or self._lines[False].pop()
        if ticket is None:
            return None
        self._forget(ticket)
        ticket.runs = True
        self.running += 1
        self._large += ticket.large
        return ticket

    def leave(self, ticket: QueueTicket) -> None:
        """It has run, or does not want to any more. Once."""
        if ticket.runs:
            self.running -= 1
            self._large -= ticket.large
        else:
            self._lines[ticket.large].remove(ticket)
            self._forget(ticket)

    def _forget(self, ticket: QueueTicket) -> None:
        """It waits no longer."""
        left = self._waiting.pop(ticket.client) - 1
        if left:
            self._waiting[ticket.client] = left
