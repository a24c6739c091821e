"""Stand-in decode workers that send requests to one another, as `patches.move` does, and fail at
any step of it on demand.

A source takes the order at POST /toolkit/move. At the token behind those that the order names it
says `cut`, and `sent` a moment later; `on_move` in the request's body makes it do something else. A
target waits as long as the source needs for the tokens that are late, then says all of them;
`on_take` makes it do something else.

`on_move`: `refused`, `unable` (at once), `late`, `failed`, `die` (in place of the cut), `cut_die`,
`cut_fail` (after it), `deaf` (it never says anything), `404` (it does not know the request).
`on_take`: `refuse`, `die` (at once), `error`, `die_late` (in place of its first token), `hang`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from toolkit.contract.events import Moving

SENT_S = 0.01
LATE_S = 0.03
"""After the source's cut, about."""


class Orders:
    """Of one worker, by rid."""

    def __init__(self, publish: Any) -> None:
        self._publish = publish
        self._orders: dict[str, tuple[dict[str, Any], str]] = {}

    def take(self, order: dict[str, Any], bodies: dict[str, dict[str, Any]]) -> int:
        """The status of the answer."""
        rid = order["rid"]
        how = bodies.get(rid, {}).get("on_move", "")
        if rid not in bodies or how == "404":
            return 404
        if how in ("refused", "unable"):
            self._say(order, how)
        elif how != "deaf":
            self._orders[rid] = (order, how)
        return 202

    def generated(self, rid: str, count: int) -> None:
        """The request has so many tokens now."""
        order, how = self._orders.get(rid, ({}, ""))
        if not order or count <= order["count"]:
            return
        del self._orders[rid]
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how in ("late", "failed"):
            self._say(order, how)
            return
        self._say(order, "cut")
        loop = asyncio.get_running_loop()
        if how == "cut_die":
            loop.call_later(SENT_S / 2, os.kill, os.getpid(), signal.SIGKILL)
        loop.call_later(SENT_S, self._say, order, "failed" if how == "cut_fail" else "sent")

    def ended(self, rid: str) -> None:
        order, _ = self._orders.pop(rid, (None, ""))
        if order is not None:
            self._say(order, "gone")

    def _say(self, order: dict[str, Any], state: Any) -> None:
        self._publish(Moving(order["rid"], state, order["room"], "as asked"))
