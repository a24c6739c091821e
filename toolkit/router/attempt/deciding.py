"""One attempt of a sub-request: a prefill call and a decode call that share a room, each on the
rank that is chosen for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.contract import prefill_only
from toolkit.contract.events import PrefillDone
from toolkit.policies.base import RequestView
from toolkit.router.attempt.cleaning import clean_up
from toolkit.router.attempt.early import Early
from toolkit.router.attempt.outcomes import Outcomes
from toolkit.router.attempt.relaying import Relaying
from toolkit.router.attempt.upstream_calls import Answer, UpstreamCalls, prefill_body
from toolkit.router.first import first_of
from toolkit.router.first_token import PATCH, why_decode
from toolkit.router.metrics import Timing
from toolkit.router.moves.base import GoOn
from toolkit.router.one_token import is_one
from toolkit.router.rank import Rank
from toolkit.router.request import SubRequest, new_room
from toolkit.router.reservation import Reservation
from toolkit.router.upstream_call import UpstreamCall, set_rank

if TYPE_CHECKING:
    import numpy as np

    from toolkit.router.client import ClientStream
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.moves.live import Live
    from toolkit.router.relay import Relay
    from toolkit.signatures.reader import SignatureSample

GONE_S = 0.3
"""Between the break of a worker's event stream and that of a request's connection."""


class Attempt:
    """`run` ends with an answer, with None (streamed), or with Retry or ApiError.

    However it ends, both workers are told to drop what still runs, and every count goes back.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        number: int,
        arrived: float,
        live: Live,
    ) -> None:
        self._d = dispatcher
        self._live = live
        self._sub_request = sub_request
        self._number = number
        self._relay = relay
        self._client = client
        self._upstream_calls = UpstreamCalls(dispatcher, sub_request, relay, number)
        self._outcomes = Outcomes(dispatcher, sub_request, self._upstream_calls)
        self._arrived = arrived
        self._timing = Timing()
        self._relaying = Relaying(
            dispatcher,
            sub_request,
            relay,
            client,
            self._upstream_calls,
            self._outcomes,
            self._timing,
            arrived,
            first=number == 0,
            live=live,
        )
        self._late = False
        self._done_at = 0.0
        self._sample: SignatureSample | None = None
        view = sub_request.view
        if sub_request.resume_ids:
            view = replace(view, prompt_tokens=view.prompt_tokens + len(sub_request.resume_ids))
        self._view: RequestView = view

    async def run(self) -> Answer | None:
        ok = moved = False
        try:
            if not self._d.config.disaggregated:
                answer = await self._whole("plain")
            elif self._sub_request.endpoint == "count_tokens":
                answer = await self._whole("prefill")
            else:
                answer = await self._split()
            ok = True
            return answer
        except GoOn:
            moved = True
            raise
        finally:
            self._live.off()
            clean_up(self._d, self._sub_request, self._relay, self._upstream_calls, ok, moved)

    @property
    def _wait_s(self) -> float:
        config = self._d.config
        return config.no_worker_wait_s if self._number == 0 else config.rerun_wait_s

    @property
    def _deadline(self) -> float:
        """When its client gets 504."""
        return self._arrived + self._d.config.request_timeout_s

    async def _whole(self, role: str) -> Answer | None:
        """All of it on one worker."""
        rank = self._reserved() or await self._d.pick(
            role, self._sub_request, self._view, self._wait_s, self._deadline
        )
        body = self._upstream_calls.body()
        set_rank(body, rank)
        self._timing.queue = monotonic() - self._arrived
        self._upstream_calls.reservation = self._take(rank)
        upstream_call = self._post(rank, body, decode=True)
        self._live.at(upstream_call, self._upstream_calls, self._view)
        return await self._relaying.follow(upstream_call, None, self._late)

    def _reserved(self) -> Rank | None:
        """Where a place is kept for it, since it is being moved there."""
        move = self._live.move
        rank = move.reservation.rank if move is not None and move.reservation is not None else None
        return rank if rank is not None and rank.open else None

    def _take(self, rank: Rank) -> Reservation | None:
        """The place that is kept for it there; one elsewhere is given back."""
        move = self._live.move
        reservation = move.take_reservation() if move is not None else None
        if reservation is not None and reservation.rank is not rank:
            reservation.cancel()
            return None
        return reservation

    async def _split(self) -> Answer | None:
        """Prefill and decode apart: late when the prefill can tell that it is done."""
        d = self._d
        one = is_one(self._sub_request)
        if not one:
            # No prefill whose KV nobody can take: first somebody must be there.
            await d.present("decode", self._wait_s, self._deadline)
        late = d.dispatch == "late"
        prefill = await d.pick(
            "prefill", self._sub_request, self._view, self._wait_s, self._deadline, credit=late
        )
        if late:
            self._upstream_calls.credit = prefill
        if one:
            if prefill_only.PATCH in prefill.worker.hello.patches:
                return await self._prefill_only(prefill)
            await d.present("decode", self._wait_s, self._deadline)
        self._late = late = late and prefill.worker.has_events
        decode = None
        if not late:
            decode = await d.pick(
                "decode", self._sub_request, self._view, self._wait_s, self._deadline
            )
        room = new_room(prefill.worker.config.dp_size, prefill.dp_rank)
        self._timing.queue = monotonic() - self._arrived
        body = self._upstream_calls.split_body(prefill, room)
        done = self._upstream_calls.event = (
            prefill.worker.expect_prefill(self._upstream_calls.rid) if late else None
        )
        early = self._early(prefill)
        prefill_call = self._post(
            prefill, prefill_body(body, prefill, early is not None), decode=False, early=early
        )
        decided_at = posted_at = monotonic()
        if decode is None:
            assert done is not None
            d.parked += 1
            try:
                decode = await self._late_choice(prefill_call, done)
            finally:
                d.parked -= 1
                done.cancel()
            decided_at = monotonic()
        set_rank(body, decode)
        self._upstream_calls.reservation = self._upstream_calls.reservation or self._take(decode)
        decode_call = self._post(decode, body, decode=True)
        self._upstream_calls.return_credit()
        self._note_signature(decode_call)
        self._live.at(decode_call, self._upstream_calls, self._view)
        if late:
            self._timing.prefill = self._done_at - posted_at
            self._timing.decide = decided_at - self._done_at
        return await self._relaying.follow(decode_call, prefill_call, late)

    async def _prefill_only(self, prefill: Rank) -> Answer | None:
        """All it asks for is there when it has been prefilled."""
        self._timing.queue = monotonic() - self._arrived
        upstream_call = self._post(
            prefill, self._upstream_calls.prefill_only_body(prefill), decode=True
        )
        self._d.metrics.prefill_only.inc()
        return await self._relaying.follow(upstream_call, None, late=False)

    def _early(self, prefill: Rank) -> Early | None:
        """Who passes on the first token of this prefill; None where decode is to tell it."""
        relay, d = self._relay, self._d
        if relay is None or d.first_token == "decode" or relay.sent.events:
            return None
        told, tickets = PATCH in prefill.worker.hello.patches, bool(d.known_workers.worker_key)
        if why_decode(self._sub_request, late=self._late, told=told, tickets=tickets):
            return None
        return Early(self._sub_request, relay, self._upstream_calls.rid, self._begin)

    def _begin(self) -> None:
        """The client has its first token."""
        assert self._client is not None
        self._client.begin()
        self._relaying.begun = True
        self._d.metrics.early.inc()
        if self._number == 0:
            self._d.metrics.began(monotonic() - self._arrived, self._view.request_class)

    async def _late_choice(
        self, upstream_call: UpstreamCall, done: asyncio.Future[PrefillDone | None]
    ) -> Rank:
        config = self._d.config
        await first_of((done, upstream_call.call.done), config.prefill_wait_s)
        self._done_at = monotonic()
        if upstream_call.call.done.done():
            self._outcomes.check_prefill(upstream_call)
        event = done.result() if done.done() else None
        if event is None and not upstream_call.rank.worker.healthy:
            # It went away with this request, most likely: its connection will tell.
            await first_of((upstream_call.call.done,), GONE_S)
            if upstream_call.call.done.done():
                self._outcomes.check_prefill(upstream_call)
        if event is not None:
            self._outcomes.prove(upstream_call)
            tokens = event.prompt_tokens or self._view.prompt_tokens
            if self._number == 0:
                self._sub_request.prompt_tokens = tokens
            self._view = replace(
                self._view,
                prompt_tokens=tokens,
                cached_tokens=event.cached_tokens,
                signature=self._signature(upstream_call, event),
            )
        # Without an event (lost with its stream, or late beyond reason) bind at once: SGLang's
        # own flow also registers the decode before the prefill has run.
        reserved = self._reserved()
        if reserved is not None:
            return reserved
        if self._d.pooling:
            return await self._from_pool(upstream_call)
        chosen = self._d.choose("decode", self._sub_request, self._view)
        if chosen is not None:
            return chosen
        picking = asyncio.ensure_future(
            self._d.pick(
                "decode", self._sub_request, self._view, config.park_timeout_s, self._deadline
            )
        )
        try:
            await first_of((picking, upstream_call.call.done))
            if not picking.done():
                self._outcomes.check_prefill(upstream_call)
            return await picking
        finally:
            picking.cancel()

    async def _from_pool(self, upstream_call: UpstreamCall) -> Rank:
        while True:
            reservation = await self._bound(upstream_call)
            if reservation.rank.worker.healthy:
                self._upstream_calls.reservation = reservation
                return reservation.rank
            reservation.cancel()  # it went down in that very turn of the loop

    async def _bound(self, upstream_call: UpstreamCall) -> Reservation:
        pool = self._d.pool
        assert pool is not None
        streams, generated = self._relay is not None, len(self._sub_request.resume_ids)
        waiter = pool.enter(self._sub_request, self._view, streams, generated)
        try:
            await first_of((waiter.bound, upstream_call.call.done))
            if upstream_call.call.done.done():
                # A decode that is posted to the room of a failed prefill would hang.
                self._outcomes.check_prefill(upstream_call)
                await first_of((waiter.bound,))
            return waiter.take()
        finally:
            pool.leave(waiter)

    def _signature(
        self, upstream_call: UpstreamCall, event: PrefillDone
    ) -> np.ndarray | str | None:
        locality = self._d.locality
        if locality is None or not locality.active:
            return None
        read = locality.read(upstream_call.rank.worker.name, event)
        if isinstance(read, str):
            return read
        self._sample = read
        return read.vector

    def _note_signature(self, upstream_call: UpstreamCall) -> None:
        """Now that the decode is on its way."""
        locality, sample = self._d.locality, self._sample
        if locality is None or sample is None:
            return
        # A prompt counts once, however often it is run, and however many samples are wanted.
        if self._number == 0 and self._sub_request.first_sample:
            locality.observe(sample)

    def _post(
        self, rank: Rank, body: dict[str, Any], decode: bool, early: Early | None = None
    ) -> UpstreamCall:
        view, late = self._view, self._late
        return self._upstream_calls.post(rank, body, view, decode=decode, late=late, early=early)
