"""Stand-in decode workers that send requests to one another, as `patches.move` does, and fail at
any step of it on demand.

A source takes orders at POST /toolkit/move. So many tokens after the order it says `cut`, and
`sent` a moment later; what it generates from then on it keeps back, until the router says that
nothing comes of the move, or drops the request. `on_move` in the request's body makes it do
something else. A target waits as long as the source needs, then says all tokens; `on_take` makes it
do something else.

`on_move`: `refused`, `unable` (at once), `slow`, `replay`, `failed`, `die` (in place of the cut),
`cut_die`, `cut_fail` (after it), `deaf` (it never says anything), `404` (it does not know the
request), `long` (it stops later), `crawl` (it measured a link that takes 100 steps for a token).
`on_take`: `refuse`, `die` (at once), `error`, `die_late` (in place of its first token), `hang`.
"""

import asyncio
import os
import signal
from typing import Any

from toolkit.contract.events import Moving
from toolkit.contract.move_orders import End, Ids, Send, decode_order

SENT_S = 0.01
LATE_S = 0.03
"""After the source's cut, about."""
RATE, STEP_S = 1e9, 0.001
CRAWL_BYTES = 100 * RATE * STEP_S
AHEAD, LONG = 8, 150
"""Tokens after the order at which a source stops."""


def ahead_of(body: dict[str, Any]) -> int:
    """How many tokens after the order the source of this request stops."""
    return LONG if body.get("on_move") == "long" else AHEAD


class Orders:
    """Of one worker, by rid."""

    def __init__(self, publish: Any) -> None:
        self._publish = publish
        self._orders: dict[str, tuple[Send, str, int]] = {}
        self._held: dict[str, int] = {}
        """The room of the move for which a request has stopped."""
        self._kept: dict[str, bytes] = {}
        """What such a request has generated since."""
        self.told: dict[str, int] = {}
        """Of requests whose KV is coming, the ids that the router told."""
        self.ends = 0
        """Orders that a move is off."""

    def take(self, body: bytes, bodies: dict[str, dict[str, Any]]) -> int:
        """The status of the answer."""
        order = decode_order(body)
        if isinstance(order, End):
            self.ends += 1
            self._orders.pop(order.rid, None)
            self._let_go(order.rid, order.room)
            return 202
        asked = bodies.get(order.rid)
        how = "" if asked is None else asked.get("on_move", "")
        if asked is None or how == "404":
            return 404
        if isinstance(order, Ids):
            self.told[order.rid] = len(order.ids)
        elif how in ("refused", "unable"):
            self._say(order, how)
        elif how != "deaf":
            self._orders[order.rid] = (order, how, order.known + ahead_of(asked))
        return 202

    def generated(self, rid: str, count: int) -> None:
        """The request has so many tokens now."""
        if rid not in self._orders:
            return
        order, how, stop = self._orders[rid]
        if count <= stop:
            return
        del self._orders[rid]
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how in ("slow", "replay", "failed"):
            self._say(order, how)
            return
        self._held[rid] = order.room
        self._say(order, "cut", count - 1)
        loop = asyncio.get_running_loop()
        if how == "cut_die":
            loop.call_later(SENT_S / 2, os.kill, os.getpid(), signal.SIGKILL)
        loop.call_later(SENT_S, self._cut_ended, order, how)

    def through(self, rid: str, data: bytes) -> bytes:
        """What of this output goes to the client now."""
        data = self._kept.pop(rid, b"") + data
        if rid not in self._held:
            return data
        self._kept[rid] = data
        return b""

    async def free(self, rid: str, dropped: set[str]) -> bytes:
        """Wait until its client may have the rest, or nobody wants it; what was kept back."""
        while rid in self._held and rid not in dropped:
            await asyncio.sleep(0.002)
        return self._kept.pop(rid, b"")

    def ended(self, rid: str) -> None:
        """The request is over."""
        self._held.pop(rid, None)
        self._kept.pop(rid, None)
        order, _, _ = self._orders.pop(rid, (None, "", 0))
        if order is not None:
            self._say(order, "gone")

    def _cut_ended(self, order: Send, how: str) -> None:
        if how == "cut_fail":
            self._let_go(order.rid, order.room)
        token_bytes = CRAWL_BYTES if how == "crawl" else 0.0
        self._say(order, "failed" if how == "cut_fail" else "sent", token_bytes=token_bytes)

    def _let_go(self, rid: str, room: int) -> None:
        if self._held.get(rid) == room:
            del self._held[rid]

    def _say(self, order: Send, state: Any, outputs: int = 0, token_bytes: float = 0.0) -> None:
        self._publish(
            Moving(
                order.rid, state, order.room, "as asked", outputs=outputs, rounds=2, rate=RATE,
                step_s=STEP_S, token_bytes=token_bytes,
            )
        )  # fmt: skip
