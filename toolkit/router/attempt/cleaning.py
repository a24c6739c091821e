"""However an attempt ends: workers drop what still runs, and every count goes back."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.router.attempt.legs import Leg, Legs
from toolkit.router.attempt.verdicts import FULL
from toolkit.router.merge import completion_tokens
from toolkit.router.request import SubRequest

if TYPE_CHECKING:
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.relay import Relay

log = logging.getLogger("toolkit.router")

PREFILL_LINGER_S = 10.0
"""A prefill may answer this long after its decode has finished; then its call is closed."""


def clean_up(
    dispatcher: Dispatcher,
    sub_request: SubRequest,
    relay: Relay | None,
    legs: Legs,
    ok: bool,
    moved: bool = False,
) -> None:
    """`ok`: the client has its whole answer; `moved`: it goes on elsewhere."""
    legs.return_credit()
    dispatcher.known_workers.leave_lane(sub_request)
    if legs.news is not None:
        legs.news.cancel()
    if legs.booking is not None:
        legs.booking.cancel()
    for leg in legs.all:
        call = leg.call
        if ok:
            leg.rank.worker.record.answered(monotonic())
        elif leg.probe:
            _unprobed(leg)
        if ok and not call.done.done():
            # The prefill's answer may trail the decode's last byte.
            asyncio.get_running_loop().call_later(PREFILL_LINGER_S, call.close)
            call.done.add_done_callback(partial(_end_later, leg))
            continue
        if not ok and not call.answered:
            try:
                leg.rank.worker.abort(leg.rid)
            except Exception:  # best effort, as it is; the counts must go back
                name, worker = sub_request.request_id, leg.rank.worker.name
                log.exception("request %s: %s could not be told to drop it", name, worker)
            call.close()
        _end(leg, _generated(leg, relay, ok), ok, moved)


def _unprobed(leg: Leg) -> None:
    """The probe of a worker ended without a good answer."""
    record, call = leg.rank.worker.record, leg.call
    refused = call.answered and leg.status >= 500 and leg.status not in FULL
    if refused or (call.failed and call.kind != "closed"):
        record.failed(monotonic())
    else:
        record.unknown()


def _generated(leg: Leg, relay: Relay | None, ok: bool) -> int:
    """Output tokens of this attempt as far as they are known."""
    if not leg.decode:
        return 0
    if relay is not None:
        return relay.tokens - leg.brought
    if not ok or not leg.booking.followed:  # reading an answer costs more than it tells
        return 0
    return completion_tokens(bytes(leg.call.body))


def _end_later(leg: Leg, _: asyncio.Future[bool]) -> None:
    _end(leg)


def _end(leg: Leg, generated: int = 0, finished: bool = False, moved: bool = False) -> None:
    ok = None if moved and leg.decode else leg.call.answered and leg.status < 500
    leg.booking.end(ok, generated, finished)
