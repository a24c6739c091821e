"""However an attempt ends: workers drop what still runs, and every reservation goes back."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from toolkit.decide.messages import CallReleased, Outcome
from toolkit.router.attempt.outcomes import FULL
from toolkit.router.merge import completion_tokens

if TYPE_CHECKING:
    from toolkit.router.attempt.upstream_calls import UpstreamCalls
    from toolkit.router.decider_channel import DeciderChannel
    from toolkit.router.relay import Relay
    from toolkit.router.upstream_call import UpstreamCall

log = logging.getLogger("toolkit.router")

PREFILL_LINGER_S = 10.0
"""A prefill may answer this long after its decode has finished; then its call is closed."""


def clean_up(
    channel: DeciderChannel,
    upstream_calls: UpstreamCalls,
    relay: Relay | None,
    request_id: str,
    ok: bool,
    moved: bool,
) -> None:
    """`ok`: the client has its whole answer; `moved`: it goes on elsewhere."""
    for upstream_call in upstream_calls.all:
        call, reservation = upstream_call.call, upstream_call.reservation
        if ok and not call.done.done():
            # The prefill's answer may trail the decode's last byte.
            asyncio.get_running_loop().call_later(PREFILL_LINGER_S, call.close)
            call.done.add_done_callback(partial(_end_later, channel, upstream_call))
            continue
        if not ok and not call.answered:
            try:
                upstream_call.rank.worker.abort(upstream_call.rid)
            except Exception:  # best effort, as it is; the counts must go back
                worker = upstream_call.rank.worker.name
                log.exception("request %s: %s could not be told to drop it", request_id, worker)
            call.close()
        outcome = _outcome(upstream_call, ok, moved)
        generated = _generated(upstream_call, relay, ok)
        channel.send(CallReleased(reservation, outcome, _answered(upstream_call), generated, ok))


def _outcome(upstream_call: UpstreamCall, ok: bool, moved: bool) -> Outcome:
    if ok:
        return "served"
    if moved and upstream_call.decode:
        return "moved"
    call = upstream_call.call
    refused = call.answered and upstream_call.status >= 500 and upstream_call.status not in FULL
    lost = call.failed and call.kind != "closed"
    return "failed" if refused or lost else "unknown"


def _answered(upstream_call: UpstreamCall) -> bool:
    return upstream_call.call.answered and upstream_call.status < 500


def _generated(upstream_call: UpstreamCall, relay: Relay | None, ok: bool) -> int:
    """Output tokens of this attempt as far as they are known."""
    if not upstream_call.decode:
        return 0
    if relay is not None:
        return relay.tokens - upstream_call.brought
    if not ok or not upstream_call.reservation.followed:
        return 0  # reading an answer costs more than it tells
    return completion_tokens(bytes(upstream_call.call.body))


def _end_later(
    channel: DeciderChannel, upstream_call: UpstreamCall, _: asyncio.Future[bool]
) -> None:
    channel.send(CallReleased(upstream_call.reservation, "unknown", _answered(upstream_call)))
