"""A request that runs now, as one who moves requests sees it; and what a kind of move is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from toolkit.router import resumable
from toolkit.router.errors import ApiError
from toolkit.router.stream_memory import FORGOTTEN

if TYPE_CHECKING:
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.base import RequestView
    from toolkit.router.attempt.upstream_calls import UpstreamCalls
    from toolkit.router.moves.base import Move
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest
    from toolkit.router.request_channel import RequestChannel
    from toolkit.router.upstream_call import UpstreamCall
    from toolkit.router.worker import Rank


SOON = 4
"""Tokens before its end at which a request is not worth a move."""
MANY = 1 << 30


class Kind(Protocol):
    """A way to move a request. It runs in the request's own task, between two events of its stream.

    `run` returns when the request stays where it is or has ended there (`relay.ended`), or when it
    has been taken over within the attempt: then it has put the new upstream call into
    `live.upstream_call`. It raises GoOn to have the next attempt run it again, at the booked
    rank, with what the client has. Whatever it raises else is the attempt's failure, and the
    ordinary retry takes the request.
    """

    name: str

    def why_not(self, live: Live, target: Rank) -> str | None:
        """What of this request, or of these workers, this kind cannot do; None when it can."""
        ...

    async def run(self, live: Live, move: Move) -> None: ...


class Live:
    """One sub-request, over all its attempts. `upstream_call` is the call that its client's answer
    comes from, None while there is none: before its decode worker has it, and between two
    attempts."""

    __slots__ = (
        "_view",
        "began",
        "channel",
        "kind",
        "move",
        "ordered",
        "relay",
        "sub_request",
        "upstream_call",
        "upstream_calls",
    )

    def __init__(
        self, sub_request: SubRequest, relay: Relay | None, channel: RequestChannel
    ) -> None:
        self.sub_request = sub_request
        self.channel = channel
        self.relay = relay
        self.upstream_call: UpstreamCall | None = None
        self.upstream_calls: UpstreamCalls | None = None
        self.move: Move | None = None
        """The one that is under way."""
        self.kind: Kind | None = None
        """By which that one is run."""
        self.began = monotonic()
        self.ordered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when its attempt is to look at `move`."""
        self._view = sub_request.view

    @property
    def number(self) -> int:
        """By which the decider knows it."""
        return self.channel.number

    @property
    def rid(self) -> str:
        return self.sub_request.rid

    @property
    def rank(self) -> Rank | None:
        """Where it decodes now."""
        return None if self.upstream_call is None else self.upstream_call.rank

    @property
    def length(self) -> int:
        """KV tokens: of its prompt, as far as that is counted, and of what was generated."""
        return self._view.prompt_tokens + self.generated

    @property
    def generated(self) -> int:
        """Tokens that its client has of it; 0 of an answer that does not stream."""
        return 0 if self.relay is None else self.relay.tokens

    @property
    def left(self) -> int | None:
        """Tokens that it will yet generate, where that is certain: its text's end is ignored."""
        most = self._view.max_new_tokens
        if not most or self._view.min_new_tokens < most:
            return None
        return max(0, most - self.generated)

    def at(
        self, upstream_call: UpstreamCall, upstream_calls: UpstreamCalls, view: RequestView
    ) -> None:
        """A worker has been asked for its answer. `view`: as it was asked, resumed tokens in the
        prompt."""
        self.upstream_call, self.upstream_calls = upstream_call, upstream_calls
        prompt = view.prompt_tokens - len(self.sub_request.resume_ids)
        self._view = replace(view, prompt_tokens=max(0, prompt))

    def off(self) -> None:
        """The attempt is over."""
        self.upstream_call = self.upstream_calls = None

    def view(self) -> RequestView:
        """As a rank is to see it that it moves to: all that it has is prompt."""
        return replace(self._view, prompt_tokens=self.length)

    def why_not(self) -> str | None:
        """Why it cannot be moved now; None when it can."""
        sub_request, relay, upstream_call = self.sub_request, self.relay, self.upstream_call
        if self.move is not None:
            return "it is being moved"
        if relay is None:
            return "its answer does not stream"
        if relay.forgotten:
            return FORGOTTEN
        if sub_request.endpoint in ("messages", "responses"):
            return "the end of its stream would not say that it was moved"
        reason = resumable.why_not(sub_request)
        if reason is not None:
            return f"no other worker can go on with it: {reason}"
        if self.channel.channel.suspicion(self.number).suspect:
            return "it is suspected to fail workers"
        if upstream_call is None or not relay.caught_up:
            return "it has not begun on a decode worker"
        if upstream_call.rank.worker.config.role == "prefill":
            return "its prefill worker does all of it"
        if not relay.ids:
            return "its worker does not tell which tokens it generates"
        return "it ends soon" if self.at_most <= SOON else None

    @property
    def at_most(self) -> int:
        """Tokens that it may still generate; many where it does not say."""
        most = self.sub_request.view.max_new_tokens
        return MANY if self.relay is None or not most else most - self.relay.tokens

    def order(self, move: Move, kind: Kind) -> None:
        """Have its attempt look at the move, which `kind` is to run."""
        self.move, self.kind = move, kind
        if not self.ordered.done():
            self.ordered.set_result(None)

    def listen(self) -> asyncio.Future[None]:
        """`ordered`, made new when it has been looked at."""
        if self.ordered.done() and (self.move is None or self.move.run):
            self.ordered = asyncio.get_running_loop().create_future()
        return self.ordered

    def leave(self, move: Move) -> None:
        """The source's part in the move is over; whoever goes on ends the stall."""
        assert self.relay is not None
        move.left = True
        move.stalled_at = self.relay.sent_at
        self.relay.on_event = self._gone_on

    def _gone_on(self) -> None:
        """Its client has had the first event after the source's last one."""
        move, rank = self.move, self.rank
        self.move = None
        if move is None:
            return
        assert self.relay is not None and rank is not None
        stall = monotonic() - move.stalled_at
        if rank is move.source:
            reason = f"{move.target.name} failed, and it went back"
            move.end("kept", reason, stall_s=stall, cause="target")
        else:
            move.end("moved", to=rank.name, stall_s=stall)

    def take_place(self) -> Reservation | None:
        """The place that its move keeps for the next attempt, which is the caller's from now on."""
        return None if self.move is None else self.move.take_reservation()

    def failed(self, worker: str) -> None:
        """An attempt has failed, and another one follows. A place on another worker is kept."""
        move = self.move
        if move is None:
            return
        if not move.left and self.relay is not None:
            self.leave(move)
        if move.reservation is not None and move.target.worker.name == worker:
            move.drop_reservation()

    def over(self, error: BaseException | None) -> None:
        """The request has ended, by itself when `error` is None."""
        move, self.move = self.move, None
        self.off()
        if move is None:
            return
        if error is None:
            move.end("ended", "it came to its end first")
        elif isinstance(error, ApiError):
            move.end("lost", error.message)
        else:
            move.end("ended", "its client went away")
