"""Where each user's last request went: bounded, and forgotten after a while."""

from collections import OrderedDict
from math import isfinite, isnan

Key = tuple[str, int]


class UserMap:
    """User -> engine, of which at most `capacity` are kept, the least recently stored out first.

    An entry holds for `expiry` after it was stored, in whatever unit `now` is given (seconds in
    the router): a user who comes back later finds that prefix evicted anyway. There is no clock in
    here. `now` may run backwards, as requests are not decided in the order of their arrival; an
    entry from the future holds; with a `now` that is not finite nothing is found and the user is
    forgotten. If it never changes, nothing expires and only `capacity` bounds the map.

    Users are whatever tells them apart; give digests (`toolkit.policies.support.user`), so that no
    names are kept. A look and a store cost O(1) (a store drops up to two that have expired), an
    entry about 300 bytes. `expired` and `evicted` count what was dropped for age and for room.
    ValueError: a capacity below 1, an expiry that is not above 0 (infinite is allowed).
    """

    def __init__(self, capacity: int = 100_000, expiry: float = 300.0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity} must be at least 1 user")
        if isnan(expiry) or expiry <= 0:
            raise ValueError(f"expiry = {expiry:g} must be above 0")
        self._capacity = capacity
        self._expiry = expiry
        self._homes: OrderedDict[str, tuple[Key, float]] = OrderedDict()
        self.expired = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Users remembered now; some may have expired and not been dropped yet."""
        return len(self._homes)

    def find(self, user: str, now: float) -> Key | None:
        """The engine of the user's last request; None when there is none or it has expired."""
        entry = self._homes.get(user)
        return entry[0] if entry and self._fresh(entry[1], now) else None

    def store(self, user: str, engine: Key, now: float) -> None:
        """The user's request goes to this engine."""
        if not isfinite(now):
            self._homes.pop(user, None)
            return
        self._homes[user] = (engine, now)
        self._homes.move_to_end(user)
        # Two for each new one: the map shrinks after a rush, and no single request pays for it.
        for _ in range(2):
            _, at = next(iter(self._homes.values()))
            if self._fresh(at, now):
                break
            self._homes.popitem(last=False)
            self.expired += 1
        if len(self._homes) > self._capacity:
            self._homes.popitem(last=False)
            self.evicted += 1

    def _fresh(self, at: float, now: float) -> bool:
        return isfinite(now) and now - at <= self._expiry
