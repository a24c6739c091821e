"""Connections that have not shown a key yet, where clients have keys. No clock, no event loop.

They get a share of all connections. When it is taken, each newcomer takes the place of another one:
of the oldest whose address has more of them than the others have. So one address that opens
thousands closes its own. Who has a key shows it within a moment, and is none of these any more.
"""

from __future__ import annotations

from typing import Generic, TypeVar

SCAN = 64
"""Strangers that are looked at for one of a crowded address; then the oldest goes."""
T = TypeVar("T")


class Strangers(Generic[T]):
    """At most `most` of them, each with its address."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: dict[T, str] = {}
        """The oldest first."""
        self._of: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: T, address: str) -> T | None:
        """A newcomer. Gives the one that has to make way, which is none of them any more."""
        other = self._crowded(address) if len(self._all) >= self.most else None
        if other is not None:
            self.remove(other)
        self._all[one] = address
        self._of.setdefault(address, {})[one] = None
        return other

    def remove(self, one: T) -> None:
        """It has shown a key, or is gone. Nothing for one that is not here."""
        address = self._all.pop(one, None)
        if address is None:
            return
        mine = self._of[address]
        del mine[one]
        if not mine:
            del self._of[address]

    def _crowded(self, address: str) -> T:
        """Whose place the newcomer gets."""
        known = len(self._of) + (address not in self._of)
        fair = self.most / known
        mine = self._of.get(address)
        if mine is not None and len(mine) >= fair:
            return next(iter(mine))
        for number, (one, other) in enumerate(self._all.items()):
            if len(self._of[other]) > fair:
                return one
            if number == SCAN:
                break
        return next(iter(self._all))
