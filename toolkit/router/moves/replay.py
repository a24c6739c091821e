"""Move by replay: the source drops the request, and it is prefilled again, with what it has said.

1. The source is told to drop it, and is read until its last event: the ids in there count.
2. The attempt ends, and the next one brings all ids along (`patches.pd.resume`). Its prompt is
   mostly in the prefill worker's cache; the KV of the rest is computed again.
3. It is posted to the target, and the relay cuts what the client has.

Nothing needs to be sent from the source, so one that dies on the way costs no more than time. The
client waits for a prefill of what was generated, and for its transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.first import first_of
from toolkit.router.moves.base import GoOn

if TYPE_CHECKING:
    from toolkit.router.moves.base import Move
    from toolkit.router.moves.live import Live
    from toolkit.router.worker import Rank

LEAVE_S = 2.0
"""So long a source is read that was told to drop a request. Later it is left as it is: what has not
come by then is computed again."""
PATCH = "resume"


class Replay:
    """The kind that needs nothing of the source."""

    name = "replay"

    def why_not(self, live: Live, target: Rank) -> str | None:
        for rank in (live.rank, target):
            if rank is not None and (reason := why_not_resumed(rank)):
                return reason
        return None

    async def run(self, live: Live, move: Move) -> None:
        relay, upstream_call, upstream_calls = live.relay, live.upstream_call, live.upstream_calls
        assert relay is not None and upstream_call is not None and upstream_calls is not None
        relay.leave()
        worker = upstream_call.rank.worker
        # Of a client that is slow to read nothing is read: it would be waited for in vain.
        if worker.healthy and not relay.paused:
            worker.abort(upstream_calls.rid)
            await first_of((upstream_call.call.done,), LEAVE_S)
        if relay.is_over:
            return
        relay.depart()
        live.leave(move)
        raise GoOn


def why_not_resumed(rank: Rank) -> str | None:
    """Why a worker cannot go on with another one's request; None when it can."""
    hello = rank.worker.hello
    if PATCH not in hello.patches:
        return f"{rank.worker.name} has no patch {PATCH}: start it with `toolkit launch`"
    if hello.stays:
        return f"{rank.worker.name}: {hello.stays}"
    return None
