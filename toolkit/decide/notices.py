"""Bounds of the notices between routers (`toolkit.contract.notices`), and their way. Pure."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Set

BURST, PER_SECOND = 256, 64.0
"""Notices of one router that pass at once, and in the long run .."""
BYTES_BURST, BYTES_PER_SECOND = 8 * 2**20, 2.0 * 2**20
""".. and bytes of them."""
SENDERS = 256
IDS = 4096
"""Of one sender, that are remembered .."""
REMEMBERED_S = 120.0
""".. for so long. A notice is posted within seconds, or not at all."""
COPIES = 2
"""Workers through which a notice goes to each router: one of them may hang."""


class Bucket:
    """So much at once, and so much a second. ValueError: an amount above what it ever holds."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._at = burst, -math.inf

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much may be taken; 0.0: now."""
        if amount > self._burst:
            raise ValueError(f"{amount} is more than {self._burst}")
        if self._at > -math.inf:
            since = max(0.0, now - self._at)
            self._left = min(self._burst, self._left + since * self._per_second)
        self._at = max(now, self._at)
        return max(0.0, (amount - self._left) / self._per_second)

    def take(self, amount: float) -> None:
        """What `wait` said may be taken."""
        self._left -= amount


class _Sender:
    def __init__(self, burst: float, per_second: float) -> None:
        self.notices = Bucket(burst, per_second)
        self.bytes = Bucket(BYTES_BURST, BYTES_PER_SECOND)


class NoticeAllowance:
    """What each router may send through one worker, or to one router: another one's flood costs it
    nothing. Of senders only the last SENDERS are known."""

    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self._burst, self._per_second = burst, per_second
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def take(self, sender: str, size: int, now: float) -> float:
        """Seconds until a notice of `size` bytes may pass; 0.0: it does now."""
        known = self._senders.setdefault(sender, _Sender(self._burst, self._per_second))
        self._senders.move_to_end(sender)
        while len(self._senders) > SENDERS:
            self._senders.popitem(last=False)
        waits = max(known.notices.wait(1, now), known.bytes.wait(size, now))
        if not waits:
            known.notices.take(1)
            known.bytes.take(size)
        return waits


class SeenNotices:
    """Ids that have come, so that a notice that came through two workers counts once."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()

    def first(self, sender: str, notice: str, now: float) -> bool:
        """Whether it has not come before, as far as that is remembered."""
        ids = self._senders.setdefault(sender, OrderedDict())
        self._senders.move_to_end(sender)
        while len(self._senders) > SENDERS:
            self._senders.popitem(last=False)
        while ids and next(iter(ids.values())) <= now - REMEMBERED_S:
            ids.popitem(last=False)
        if notice in ids:
            return False
        ids[notice] = now
        if len(ids) > IDS:
            ids.popitem(last=False)
        return True


def ways(heard_at: Mapping[str, Set[str]], to: Iterable[str]) -> list[str]:
    """Through which workers a notice goes to these routers: COPIES for each of them as far as there
    are so many where it is heard, and few in all. `heard_at`: who listens to each worker."""
    missing = Counter(dict.fromkeys(to, COPIES))
    left, chosen = dict(heard_at), []
    while left and missing:
        worker = max(left, key=lambda name: sum(each in left[name] for each in missing))
        there = left.pop(worker)
        reached = [each for each in missing if each in there]
        if not reached:
            break
        chosen.append(worker)
        missing -= Counter(reached)
    return chosen
