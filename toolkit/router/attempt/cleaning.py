"""However an attempt ends: workers drop what still runs, and every count goes back."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.router.attempt.outcomes import FULL
from toolkit.router.attempt.upstream_calls import UpstreamCalls
from toolkit.router.merge import completion_tokens
from toolkit.router.request import SubRequest
from toolkit.router.upstream_call import UpstreamCall

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
    upstream_calls: UpstreamCalls,
    ok: bool,
    moved: bool = False,
) -> None:
    """`ok`: the client has its whole answer; `moved`: it goes on elsewhere."""
    upstream_calls.return_credit()
    dispatcher.known_workers.leave_probation(sub_request)
    if upstream_calls.event is not None:
        upstream_calls.event.cancel()
    if upstream_calls.reservation is not None:
        upstream_calls.reservation.cancel()
    for upstream_call in upstream_calls.all:
        call = upstream_call.call
        if ok:
            upstream_call.rank.worker.record.answered(monotonic())
        elif upstream_call.probe:
            _unprobed(upstream_call)
        if ok and not call.done.done():
            # The prefill's answer may trail the decode's last byte.
            asyncio.get_running_loop().call_later(PREFILL_LINGER_S, call.close)
            call.done.add_done_callback(partial(_end_later, upstream_call))
            continue
        if not ok and not call.answered:
            try:
                upstream_call.rank.worker.abort(upstream_call.rid)
            except Exception:  # best effort, as it is; the counts must go back
                name, worker = sub_request.request_id, upstream_call.rank.worker.name
                log.exception("request %s: %s could not be told to drop it", name, worker)
            call.close()
        _end(upstream_call, _generated(upstream_call, relay, ok), ok, moved)


def _unprobed(upstream_call: UpstreamCall) -> None:
    """The probe of a worker ended without a good answer."""
    record, call = upstream_call.rank.worker.record, upstream_call.call
    refused = call.answered and upstream_call.status >= 500 and upstream_call.status not in FULL
    if refused or (call.failed and call.kind != "closed"):
        record.failed(monotonic())
    else:
        record.unknown()


def _generated(upstream_call: UpstreamCall, relay: Relay | None, ok: bool) -> int:
    """Output tokens of this attempt as far as they are known."""
    if not upstream_call.decode:
        return 0
    if relay is not None:
        return relay.tokens - upstream_call.brought
    if (
        not ok or not upstream_call.reservation.followed
    ):  # reading an answer costs more than it tells
        return 0
    return completion_tokens(bytes(upstream_call.call.body))


def _end_later(upstream_call: UpstreamCall, _: asyncio.Future[bool]) -> None:
    _end(upstream_call)


def _end(
    upstream_call: UpstreamCall, generated: int = 0, finished: bool = False, moved: bool = False
) -> None:
    ok = (
        None
        if moved and upstream_call.decode
        else upstream_call.call.answered and upstream_call.status < 500
    )
    upstream_call.reservation.end(ok, generated, finished)
