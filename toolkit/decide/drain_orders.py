"""Orders to drain ranks that routers over the same workers hand on to each other. Pure.

Of two orders about a rank the newer one holds, whichever came first: so routers that have heard of
the same orders, in whatever order and however often, leave the same ranks alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolkit.contract.notices import Proof
from toolkit.contract.numbers import Name, Seconds, Serial
from toolkit.decide.messages import Key


class DrainOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """An admin's: `worker`, or one of its ranks (`decode-0:1`), gets no new requests (`on`) or some
    again. `at`: Unix milliseconds; `empty_s`: so long what runs there is moved away or waited for.
    `proof`: that an admin has shown a router the key (`signed`)."""

    worker: Name
    on: bool
    at: Serial
    empty_s: Seconds = 0.0
    proof: Proof = ""

    @property
    def signed(self) -> bytes:
        """What the proof is of."""
        return b"drain\n" + msgspec.json.encode(msgspec.structs.replace(self, proof=""))

    @property
    def age(self) -> tuple[int, bool, str, float]:
        """The newer of two orders has the larger one; of two at a time, that which undoes."""
        return self.at, not self.on, self.worker, self.empty_s


class DrainOrders:
    """The newest order of each rank."""

    def __init__(self) -> None:
        self._newest: dict[Key, DrainOrder] = {}

    def take(self, order: DrainOrder, ranks: Iterable[Key]) -> list[Key]:
        """An order that is about these ranks. Those of them that had none so new."""
        news = []
        for key in ranks:
            known = self._newest.get(key)
            if known is None or order.age > known.age:
                self._newest[key] = order
                news.append(key)
        return news

    def holds(self, key: Key) -> bool:
        """Whether the rank gets no new requests."""
        known = self._newest.get(key)
        return known is not None and known.on

    def newest_at(self, ranks: Iterable[Key]) -> int:
        """Of the orders about these ranks; 0: there is none."""
        return max((self._newest[key].at for key in ranks if key in self._newest), default=0)

    @property
    def all(self) -> list[DrainOrder]:
        """Those that hold for some rank, in the order of their ages: what another router needs."""
        return sorted(set(self._newest.values()), key=lambda order: order.age)
