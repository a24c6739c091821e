"""Move directly: the source sends its KV to the target in rounds, and decodes on meanwhile.

1. The target is posted the request, with the ids that the client has and places for more; the
   source is ordered to send (`patches.move`). While the client gets what the source generates, the
   target is told these ids, too.
2. The source stops at a token of its own choice (`cut`), when what is left of the KV is little.
   From then on its client gets nothing more from it. Or it says that it cannot, and it was as if
   nothing had been.
3. The target's first event makes the stream its own. Only then the source is told to drop the
   request: it has decoded on, and as long as the target has said nothing it can go on with the
   stream. If the target fails it is told so (`End`), and says at once what it held back.

So nobody who dies takes the request along: without the target the source goes on, and a source that
dies is a worker that dies, with or without a target that has its KV.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Literal

from toolkit.contract.events import Hello, Moving
from toolkit.contract.move_orders import End, Ids, Send, encode_order
from toolkit.contract.paths import MOVE
from toolkit.contract.ticket import MAX_LATE
from toolkit.decide.messages import CallReleased
from toolkit.policies.precopy import reserve_for
from toolkit.router.failure import failure_of
from toolkit.router.first import first_of
from toolkit.router.moves.replay import why_not_resumed
from toolkit.router.relay import strip
from toolkit.router.request import new_room, ticket_body
from toolkit.router.resume import split_events
from toolkit.router.upstream_call import RID_BYTES, Apart, UpstreamCall, set_rank

if TYPE_CHECKING:
    from typing import Any

    from toolkit.decide.reservation import Reservation
    from toolkit.router.moves.base import Move
    from toolkit.router.moves.live import Live
    from toolkit.router.moves.replay_times import ReplayTimes
    from toolkit.router.upstream import Call
    from toolkit.router.worker import Rank

SENDS, TAKES = "move_order", "move_incoming"
CUT_S = 30.0
"""So long the source has until it stops, or says that it does not; it does by itself before."""
TAKEN_S = 2.0
"""So long the target has for its first token after the cut; then the source goes on."""
MEASURED_S = 60.0
"""A rate that is older than this is no reason not to try."""
DEAD_S = 1.0
"""The same where the source has died after the cut: then another worker goes on."""
TELL_S, TELL = 0.02, 48
"""So often the target is told ids, if there are so many new ones; the last ones come with the
KV."""
Ended = Literal["taken", "kept", "over"]


class Direct:
    """The kind for which source and target talk to each other. Falls back on nothing: who orders
    can try another kind."""

    name = "direct"

    def __init__(self, key: str | None, replays: ReplayTimes) -> None:
        """`key`: with which workers know the router."""
        self._key = key
        self._replays = replays
        self._copied: dict[Rank, Moving] = {}
        """What each source measured last."""
        self._copied_at: dict[Rank, float] = {}
        self._least: dict[Rank, int] = {}
        """Places that its next move has at least: the last one ran out of them."""
        self._unable: dict[Rank, tuple[Hello, str]] = {}
        """Ranks that have said why they can send nothing, and who they were then."""

    def why_not(self, live: Live, target: Rank) -> str | None:
        source = live.rank
        if source is None:
            return "it runs nowhere now"
        for rank, patch in ((source, SENDS), (target, TAKES)):
            if reason := why_not_resumed(rank):
                return reason
            if patch not in rank.worker.hello.patches:
                return f"{rank.worker.name} has no patch {patch}: set router.moves: direct or auto"
        hello, reason = self._unable.get(source, (None, ""))
        if hello is source.worker.hello:
            return f"{source.name}: {reason}"
        if source.worker.config.bootstrap_port is None:
            return f"{source.worker.name} has no bootstrap_port in the router's configuration"
        if source.worker.hello.page_size != target.worker.hello.page_size:
            return f"{source.worker.name} and {target.worker.name} have pages of different sizes"
        if live.relay is not None and live.relay.paused:
            return "its client is slow to read"
        return self._ends_sooner(live, source)

    def _ends_sooner(self, live: Live, source: Rank) -> str | None:
        """Why a request is over before all of its KV can be sent, by what was measured lately."""
        last = self._copied.get(source)
        if last is None or monotonic() - self._copied_at[source] > MEASURED_S:
            return None
        if not last.token_bytes or last.step_s <= 0:
            return None
        seconds = live.length * last.token_bytes / last.rate
        if seconds < live.at_most * _token_s(last):
            return None
        return (
            f"it ends sooner than its KV is sent: that takes {seconds:.1f} s by the "
            f"{last.rate / 1e6:.0f} MB a second that {source.name} measured"
        )

    async def run(self, live: Live, move: Move) -> None:
        source = move.source
        assert live.relay is not None
        late = self._places(live, move)
        transfer = _Transfer(self._key, live, move, late, self._replays.of(live.length))
        try:
            how = await transfer.run()
        finally:
            transfer.close()
        self._least.pop(source, None)
        if move.copied is not None and move.copied.rate > 0:
            self._copied[source] = move.copied
            self._copied_at[source] = monotonic()
        if transfer.state in ("slow", "replay"):
            self._least[source] = min(MAX_LATE, 2 * late)
        if transfer.state == "unable":
            self._unable[source] = (source.worker.hello, transfer.reason)
        if how == "kept":
            live.move = None
            move.end("kept", transfer.reason, other_kind=transfer.unable, cause=transfer.cause)

    def _places(self, live: Live, move: Move) -> int:
        """Tokens that the request may generate before it stops: the target has places for them."""
        source, last = move.source, self._copied.get(move.source)
        most = min(MAX_LATE, live.at_most - 2)
        room = move.room - live.length
        context = move.target.worker.hello.context_length
        if context:
            room = min(room, context - live.length - 2)
        if last is None or not last.token_bytes:
            wanted = reserve_for(live.length, 0.0, 0.0, MAX_LATE)
        else:
            rate = last.rate / last.token_bytes
            wanted = reserve_for(live.length, rate, _token_s(last), MAX_LATE)
        return int(max(1, min(most, room, max(wanted, self._least.get(source, 0)))))


def _token_s(last: Moving) -> float:
    """Seconds a generated token on the rank that said so; 0: not measured."""
    return last.step_s / max(1.0, last.step_tokens)


class _Transfer:
    """One move. `late`: places that the target keeps. `state`: what the source said last; `cause`:
    why it is kept, in a word."""

    def __init__(self, key: str | None, live: Live, move: Move, late: int, replay_s: float) -> None:
        self._key = key
        self._move = move
        self._live = live
        assert (
            live.relay is not None
            and live.upstream_call is not None
            and live.upstream_calls is not None
        )
        self._relay, self._from, self._upstream_calls = (
            live.relay,
            live.upstream_call,
            live.upstream_calls,
        )
        self._late, self._replay_s = late, replay_s
        self._known = self._told = 0
        """Output tokens that the target was posted, and of which it was told since."""
        self._room = 0
        self._rid = ""
        self._to: UpstreamCall | None = None
        self._order: Call | None = None
        self._early = bytearray()
        """Of the target, before it is the one that the client hears."""
        self._heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.state = ""
        self.reason = ""
        self.cause = ""
        self.unable = False
        """It is the source that cannot."""
        self._event: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken = False

    async def run(self) -> Ended:
        self._from.rank.worker.on_moving[self._from.rid] = self._moving
        reservation = self._move.take_reservation()
        if reservation is None:
            return self._keep(f"{self._move.target.name} takes nothing now", "target")
        try:
            ids = self._relay.known_ids()
        except ValueError as error:
            self._live.channel.channel.give_back(reservation)
            return self._keep(str(error), "source")
        self._post(ids, reservation)
        how = await self._until_taken()
        if how == "taken":
            self._take()
        return how

    def _post(self, ids: list[int], reservation: Reservation) -> None:
        live, target, source = self._live, self._move.target, self._from.rank
        sub_request, config = live.sub_request, source.worker.config
        self._rid = secrets.token_hex(RID_BYTES)
        self._room = room = new_room(config.dp_size, source.dp_rank)
        self._known = self._told = len(ids)
        resume, key = [*ids, *[0] * self._late], self._key
        body: dict[str, Any] = ticket_body(sub_request, self._rid, key, resume, self._late)
        body |= {
            "rid": self._rid,
            "bootstrap_host": config.bootstrap_host or config.host,
            "bootstrap_port": config.bootstrap_port,
            "bootstrap_room": room,
        }
        if config.dp_size > 1:
            body["disagg_prefill_dp_rank"] = source.dp_rank
        set_rank(body, target)
        order = Send(self._from.rid, room, len(ids), self._late, self._replay_s)
        self._order = source.worker.post(MOVE, encode_order(order))
        apart = Apart(self._rid, len(ids), self._feed)
        live.channel.channel.beside(live.number, self._rid, target.worker.name)
        try:
            self._to = self._upstream_calls.post(
                target, body, reservation, decode=True, late=True, apart=apart
            )
        except Exception:
            live.channel.channel.give_back(reservation)
            raise

    def _tell(self) -> None:
        """The target needs to know what the client has got since.

        Raises:
            ValueError: that is not known any more, or never was.
        """
        if self._relay.tokens < self._told + TELL:
            return
        if self._relay.forgotten:
            raise ValueError("the router had no memory for its tokens")
        ids = self._relay.known_ids()
        self._told = len(ids)
        order = Ids(self._rid, self._known, ids[self._known : self._known + self._late])
        self._move.target.worker.post(MOVE, encode_order(order))

    def _moving(self, event: Moving) -> None:
        if self._room and event.room != self._room:  # of a move before this one
            return
        self.state, self.reason = event.state, event.reason
        if event.rounds:
            self._move.copied = event
        if event.state == "cut":
            self._relay.hold_back(event.outputs + 1)
        if not self._event.done():
            self._event.set_result(None)

    def _feed(self, data: bytes) -> None:
        """The sink of the target's call, first to last."""
        if self._taken:
            self._relay.feed(data)
            return
        self._early += data
        self._relay.beside = len(self._early)
        if b"\n\n" in self._early and not self._heard.done():
            self._heard.set_result(None)

    async def _until_taken(self) -> Ended:
        assert self._to is not None and self._order is not None
        source, target, order = self._from.call, self._to.call, self._order
        deadline = monotonic() + CUT_S
        watched: list[asyncio.Future[Any]] = [source.done, target.done, self._heard]
        while True:
            ordered = () if order.done.done() else (order.done,)
            left = max(0.0, deadline - monotonic())
            await first_of((*watched, self._event, *ordered), min(left, self._until_told()))
            if self._heard.done():
                failure = self._failure()
                return "taken" if failure is None else self._keep(failure, "target")
            if target.done.done():
                return self._keep(f"{self._move.target.name} {self._end_of(target)}", "target")
            if source.done.done() and not self._outlived():
                # What it said last may be held back; if it has died the next attempt goes on.
                self._relay.let_out()
                return "over"
            if source.done.done() and source.done in watched:
                watched.remove(source.done)
                deadline = min(deadline, monotonic() + DEAD_S)
            if order.done.done() and order.status != 202 and not self.state:
                self.unable = True
                return self._keep(f"{self._from.rank.name} {self._end_of(order)}", "source")
            self.unable = self.state in ("unable", "refused", "replay")
            if self.unable or self.state in ("slow", "failed", "gone"):
                return self._keep(self.reason or self.state, self.state)
            if self._event.done():
                self._event = asyncio.get_running_loop().create_future()
                if self.state == "cut":
                    deadline = monotonic() + TAKEN_S
            if monotonic() >= deadline:
                return self._keep("it took too long", "time")
            if not self.state:
                try:
                    self._tell()
                except ValueError as error:
                    return self._keep(str(error), "source")

    def _until_told(self) -> float:
        """Seconds until the target may have to be told ids."""
        return CUT_S if self.state else TELL_S

    def _outlived(self) -> bool:
        """Whether the source has died when all was on its way."""
        return self._from.call.failed and self.state in ("cut", "sent")

    def _keep(self, reason: str, cause: str) -> Ended:
        """The source goes on, and hears that it does: it may have stopped, or be about to."""
        self.reason, self.cause = reason, cause
        source = self._from.rank.worker
        if self._order is not None and not self._from.call.done.done():
            source.post(MOVE, encode_order(End(self._from.rid, self._room)))
        self._relay.let_out()
        return "kept"

    @staticmethod
    def _end_of(call: Call) -> str:
        return f"answered {call.status}" if call.answered else "broke off"

    def _failure(self) -> str | None:
        """What the target says in place of an answer."""
        endpoint = self._live.sub_request.endpoint
        for raw in split_events(bytes(self._early)):
            failure = failure_of(strip(raw + b"\n\n")[1], endpoint)
            if failure is not None:
                return f"{self._move.target.name}: {failure.message}"
        return None

    def _take(self) -> None:
        """The stream is the target's."""
        move, live, relay, upstream_call = self._move, self._live, self._relay, self._to
        assert upstream_call is not None
        old = self._from
        live.leave(move)
        self._taken = True
        self._upstream_calls.all.remove(old)
        self._upstream_calls.all.append(upstream_call)
        live.upstream_call = upstream_call
        generated = relay.tokens - old.brought
        old.rank.worker.abort(old.rid)
        old.call.close()
        released = CallReleased(old.reservation, "moved", answered=True, generated=generated)
        live.channel.channel.send(released)
        relay.take_over(
            upstream_call.call,
            live.channel.channel.counter(upstream_call.reservation),
            (upstream_call.rid, live.rid),
            upstream_call.brought,
        )
        data, self._early = bytes(self._early), bytearray()
        relay.beside = 0
        relay.feed(data)

    def close(self) -> None:
        """However it ended: nobody listens, and what was begun in vain is dropped."""
        self._from.rank.worker.on_moving.pop(self._from.rid, None)
        self._relay.beside = 0
        if self._order is not None and not self._order.done.done():
            self._order.close()
        upstream_call = self._to
        if upstream_call is None or self._taken:
            return
        if not upstream_call.call.done.done():
            upstream_call.rank.worker.abort(upstream_call.rid)
            upstream_call.call.close()
        self._live.channel.channel.give_back(upstream_call.reservation)
