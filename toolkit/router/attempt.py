"""One try of a single request: a prefill call and a decode call that share a room."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from toolkit.contract.events import PrefillDone
from toolkit.contract.headers import ATTEMPT, IDS
from toolkit.policies.base import RequestView
from toolkit.router.booking import Booking
from toolkit.router.errors import ApiError, OutOfResources, Reason, Retry
from toolkit.router.first import first_of
from toolkit.router.merge import completion_tokens, put_prompt_logprobs
from toolkit.router.metrics import Timing
from toolkit.router.packed import segments
from toolkit.router.request import Single, new_room, public_id, ticket_body
from toolkit.router.upstream import Call
from toolkit.router.worker import Rank

if TYPE_CHECKING:
    import numpy as np

    from toolkit.router.client import ClientStream
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.relay import Relay
    from toolkit.signatures.reader import Sample

log = logging.getLogger("toolkit.router")

RID_BYTES = 16
SUSPECT_S = 2.0
"""So long a suspect has a worker to itself whose answer does not stream."""
GONE_S = 0.3
"""Between the break of a worker's event stream and that of a request's connection."""
PROBE_S = 10.0
"""A worker on probation is well again when an answer has run for so long, or to its end."""
FULL = frozenset({429, 503})
"""What a worker answers that has no room: another one may have."""
_ABOUT_KV = re.compile(rb"\bKV|transfer|bootstrap", re.IGNORECASE)

PREFILL_LINGER_S = 10.0
"""A prefill may answer this long after its decode has finished; then its call is closed."""
IDS_HEADER = f"{IDS}: 1\r\n"


@dataclass(slots=True)
class Answer:
    """A worker's complete answer to a request that does not stream."""

    status: int
    body: bytes


@dataclass(slots=True)
class _Leg:
    """A call and the load that it stands for."""

    rank: Rank
    call: Call
    booking: Booking
    decode: bool
    begun: float
    """When it was posted."""
    probe: bool = False
    """Whether it is to show that its worker is well again."""
    proven: bool = False
    """The worker has computed something of it."""


class Attempt:
    """`run` ends with an answer, with None (streamed), or with Retry or ApiError.

    However it ends, both workers are told to drop what still runs, and every count goes back.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        single: Single,
        relay: Relay | None,
        client: ClientStream | None,
        number: int,
        arrived: float,
    ) -> None:
        self._d = dispatcher
        self._single = single
        self._relay = relay
        self._client = client
        self._number = number
        # Never the client's, and all of one length: SGLang's abort takes every rid that begins
        # with the one it is given, whosever it is.
        self._rid = secrets.token_hex(RID_BYTES)
        self._legs: list[_Leg] = []
        self._credit: Rank | None = None
        self._booking: Booking | None = None
        """Of a decode that is chosen and not posted yet."""
        self._news: asyncio.Future[PrefillDone | None] | None = None
        """Of the prefill being done."""
        self._loop = asyncio.get_running_loop()
        self._arrived = arrived
        self._timing = Timing()
        self._late = False
        self._done_at = 0.0
        self._ok = False
        self._sample: Sample | None = None
        view = single.view
        if single.resume_ids:
            view = replace(view, prompt_tokens=view.prompt_tokens + len(single.resume_ids))
        self._view: RequestView = view

    async def run(self) -> Answer | None:
        try:
            if not self._d.config.disaggregated:
                answer = await self._plain()
            else:
                answer = await self._split()
            self._ok = True
            return answer
        finally:
            self._clean_up()

    @property
    def _wait_s(self) -> float:
        config = self._d.config
        return config.no_worker_wait_s if self._number == 0 else config.rerun_wait_s

    async def _plain(self) -> Answer | None:
        rank = await self._d.pick("plain", self._single, self._view, self._wait_s)
        body = self._body()
        self._set_rank(body, rank)
        self._timing.queue = monotonic() - self._arrived
        return await self._follow(self._post(rank, body, decode=True), None)

    async def _split(self) -> Answer | None:
        """Prefill and decode apart: late when the prefill can tell that it is done."""
        d = self._d
        # No prefill whose KV nobody can take: first somebody must be there.
        await d.present("decode", self._wait_s)
        late = d.dispatch == "late"
        prefill = await d.pick("prefill", self._single, self._view, self._wait_s, credit=late)
        if late:
            self._credit = prefill
        self._late = late = late and prefill.worker.has_events
        decode = None
        if not late:
            decode = await d.pick("decode", self._single, self._view, self._wait_s)
        room = new_room(prefill.worker.config.dp_size, prefill.dp_rank)
        self._timing.queue = monotonic() - self._arrived
        body = self._pd_body(prefill, room)
        done = self._news = prefill.worker.expect_prefill(self._rid) if late else None
        prefill_leg = self._post(prefill, self._prefill_body(body, prefill), decode=False)
        decided_at = posted_at = monotonic()
        if decode is None:
            assert done is not None
            d.parked += 1
            try:
                decode = await self._late_choice(prefill_leg, done)
            finally:
                d.parked -= 1
                done.cancel()
            decided_at = monotonic()
        if prefill.worker.config.dp_size > 1:
            body["disagg_prefill_dp_rank"] = prefill.dp_rank
        self._set_rank(body, decode)
        decode_leg = self._post(decode, body, decode=True)
        self._return_credit()
        self._note_signature(decode_leg)
        if late:
            self._timing.prefill = self._done_at - posted_at
            self._timing.decide = decided_at - self._done_at
        return await self._follow(decode_leg, prefill_leg)

    async def _late_choice(self, leg: _Leg, done: asyncio.Future[PrefillDone | None]) -> Rank:
        config = self._d.config
        await first_of((done, leg.call.done), config.prefill_wait_s)
        self._done_at = monotonic()
        if leg.call.done.done():
            self._check_prefill(leg)
        event = done.result() if done.done() else None
        if event is None and not leg.rank.worker.healthy:
            # It went away with this request, most likely: its connection will tell.
            await first_of((leg.call.done,), GONE_S)
            if leg.call.done.done():
                self._check_prefill(leg)
        if event is not None:
            self._prove(leg)
            tokens = event.prompt_tokens or self._view.prompt_tokens
            if self._number == 0:
                self._single.prompt_tokens = tokens
            self._view = replace(
                self._view,
                prompt_tokens=tokens,
                cached_tokens=event.cached_tokens,
                signature=self._signature(leg, event),
            )
        # Without an event (lost with its stream, or late beyond reason) bind at once: SGLang's
        # own flow also registers the decode before the prefill has run.
        if self._d.pooling:
            return await self._from_pool(leg)
        chosen = self._d.choose("decode", self._single, self._view)
        if chosen is not None:
            return chosen
        picking = asyncio.ensure_future(
            self._d.pick("decode", self._single, self._view, config.park_timeout_s)
        )
        try:
            await first_of((picking, leg.call.done))
            if not picking.done():
                self._check_prefill(leg)
            return await picking
        finally:
            picking.cancel()

    async def _from_pool(self, leg: _Leg) -> Rank:
        while True:
            booking = await self._bound(leg)
            if booking.rank.worker.healthy:
                self._booking = booking
                return booking.rank
            booking.cancel()  # it went down in that very turn of the loop

    async def _bound(self, leg: _Leg) -> Booking:
        pool = self._d.pool
        assert pool is not None
        streams, generated = self._relay is not None, len(self._single.resume_ids)
        waiter = pool.enter(self._single, self._view, streams, generated)
        try:
            await first_of((waiter.bound, leg.call.done))
            if leg.call.done.done():
                # A decode that is posted to the room of a failed prefill would hang.
                self._check_prefill(leg)
                await first_of((waiter.bound,))
            return waiter.take()
        finally:
            pool.leave(waiter)

    def _signature(self, leg: _Leg, event: PrefillDone) -> np.ndarray | str | None:
        locality = self._d.locality
        if locality is None or not locality.active:
            return None
        read = locality.read(leg.rank.worker.name, event)
        if isinstance(read, str):
            return read
        self._sample = read
        return read.vector

    def _note_signature(self, leg: _Leg) -> None:
        """Now that the decode is on its way."""
        locality, sample = self._d.locality, self._sample
        if locality is None or sample is None:
            return
        # A prompt counts once, however often it is run, and however many samples are wanted.
        if self._number == 0 and self._single.first_sample:
            locality.observe(sample)

    async def _follow(self, leg: _Leg, prefill: _Leg | None) -> Answer | None:
        """From the decode's POST to the end; a prefill that fails before the first byte counts."""
        posted_at = monotonic()
        call, relay, single = leg.call, self._relay, self._single
        merge = prefill is not None and single.wants_prompt_logprobs()
        if relay is not None:
            ids = (self._rid, single.rid)
            relay.begin(call, hold=merge, count=leg.booking.count, ids=ids)
        elif single.record.suspect:
            # Nothing is heard of it before its end; another suspect must not wait for that.
            self._loop.call_later(SUSPECT_S, self._d.fleet.leave_lane, single)
        waiting: set[asyncio.Future[Any]] = {call.done}
        if relay is not None:
            waiting.add(relay.first)
        if prefill is not None:
            waiting.add(prefill.call.done)
        while not call.done.done() and not (relay is not None and relay.first.done()):
            await first_of(waiting)
            if prefill is not None and prefill.call.done in waiting and prefill.call.done.done():
                waiting.discard(prefill.call.done)
                if not call.answered and not (relay is not None and relay.first.done()):
                    self._check_prefill(prefill)
                if merge and relay is not None:
                    relay.release(self._prefill_answer(prefill))
        if merge and prefill is not None and call.answered and call.status == 200:
            await self._late_prompt_logprobs(prefill)
        self._timing.first = monotonic() - posted_at
        if call.failed:
            raise self._lost(leg)
        if call.done.done() and call.status != 200:
            raise self._refusal(leg)
        self._prove(leg)
        if relay is None:
            self._d.metrics.timing(self._timing, self._late)
            return self._answer(call, prefill if merge else None)
        await self._stream_to_end(leg, relay)
        return None

    async def _stream_to_end(self, leg: _Leg, relay: Relay) -> None:
        call = leg.call
        if relay.first.done():
            if self._number == 0:
                self._d.metrics.timing(self._timing, self._late)
                self._d.metrics.ttft.observe(monotonic() - self._arrived)
            first_at = monotonic()
            assert self._client is not None
            await self._client.start()
            # A bare await would cancel `done` together with this task.
            await first_of((call.done,))
            tokens = relay.tokens
            if tokens > 1:
                self._d.metrics.tpot.observe((monotonic() - first_at) / (tokens - 1))
        if relay.ended:
            return
        failure = relay.failure
        if failure is not None:
            error = ApiError(failure.status, failure.message, event=failure.event)
            if failure.status < 500 and failure.status not in FULL:
                raise error
            raise self._failed(leg, f"error {failure.status} in its stream", error)
        if call.failed:
            raise self._lost(leg)
        raise self._retry(leg, "its stream ended early", "early")

    async def _late_prompt_logprobs(self, prefill: _Leg) -> None:
        await first_of((prefill.call.done,), PREFILL_LINGER_S)
        self._check_prefill(prefill)
        if self._relay is not None:
            self._relay.release(self._prefill_answer(prefill))

    def _prefill_answer(self, prefill: _Leg) -> dict[str, Any] | None:
        if not prefill.call.answered or prefill.call.status != 200:
            return None
        answer = orjson.loads(bytes(prefill.call.body))
        return answer if isinstance(answer, dict) else None

    def _prove(self, leg: _Leg) -> None:
        """The worker has computed something of the request: it does not die of it, nor is it the
        request's fault what other workers did."""
        if leg.proven:
            return
        leg.proven = True
        if leg.probe:
            self._loop.call_later(PROBE_S, self._well, leg)
        self._d.fleet.leave_lane(self._single)
        if leg.decode:
            self._d.reruns.blame(self._single)

    def _answer(self, call: Call, prefill: _Leg | None) -> Answer:
        body = bytes(call.body)
        prompt = self._prefill_answer(prefill) if prefill is not None else None
        if prompt is not None:
            answer = orjson.loads(body)
            put_prompt_logprobs(self._single.endpoint, answer, prompt)
            body = orjson.dumps(answer)
        return Answer(call.status, self._named(body))

    def _well(self, leg: _Leg) -> None:
        """The probe has run for a while, and still does."""
        if not leg.call.done.done():
            leg.rank.worker.record.answered(monotonic())

    def _named(self, body: bytes) -> bytes:
        """A worker's answer under the id that the client knows."""
        return body.replace(self._rid.encode(), public_id(self._single.rid))

    def _retry(self, leg: _Leg, reason: str, kind: Reason, answer: ApiError | None = None) -> Retry:
        # Between prefill and decode a failure can be the other's doing: each says so when KV did
        # not get across.
        both = {each.rank.worker.name for each in self._legs} if answer is not None else set()
        if kind == "busy":
            both = set()
        return Retry(
            leg.rank.worker.name,
            reason,
            answer,
            frozenset(both),
            kind=kind,
            begun=leg.begun,
            proven=leg.proven,
        )

    def _lost(self, leg: _Leg) -> Exception:
        error = None if leg.call.done.cancelled() else leg.call.done.exception()
        if isinstance(error, OutOfResources):
            return error.answer()
        reason = str(getattr(error, "what", "call was cancelled"))
        return self._retry(leg, reason, getattr(error, "kind", "lost"))

    def _refusal(self, leg: _Leg) -> Exception:
        """A worker's answer that is not a 200: the client's own mistake, or a failure."""
        status, body = leg.call.status, self._named(bytes(leg.call.body))
        after = 1 if status in FULL else None
        error = ApiError(status, f"answered {status}", raw=body, retry_after=after)
        if status < 500 and status not in FULL:
            self._prove(leg)
            return error
        return self._failed(leg, f"answered {status}", error)

    def _failed(self, leg: _Leg, reason: str, error: ApiError) -> Retry:
        """A worker says that it failed, or that it is full."""
        if error.status in FULL:
            leg.rank.worker.record.full(monotonic())
            return self._retry(leg, reason, "busy", error)
        about_kv = _ABOUT_KV.search(error.raw or error.message.encode())
        return self._retry(leg, reason, "transfer" if about_kv else "answer", error)

    def _check_prefill(self, leg: _Leg) -> None:
        """Raise unless the prefill answered 200."""
        if not leg.call.done.done() or leg.call.failed:
            raise self._lost(leg)
        if leg.call.status != 200:
            raise self._refusal(leg)

    def _pd_body(self, prefill: Rank, room: int) -> dict[str, Any]:
        config = prefill.worker.config
        body = self._body()
        body["bootstrap_host"] = config.bootstrap_host or config.host
        body["bootstrap_port"] = config.bootstrap_port
        body["bootstrap_room"] = room
        return body

    def _body(self) -> dict[str, Any]:
        key = self._d.fleet.worker_key
        return {**ticket_body(self._single, self._rid, key), "rid": self._rid}

    def _prefill_body(self, body: dict[str, Any], prefill: Rank) -> dict[str, Any]:
        body = {**body, "stream": False}
        body.pop("stream_options", None)
        self._set_rank(body, prefill)
        return body

    @staticmethod
    def _set_rank(body: dict[str, Any], rank: Rank) -> None:
        if rank.worker.config.dp_size > 1:
            body["routed_dp_rank"] = rank.dp_rank

    def _post(self, rank: Rank, body: dict[str, Any], decode: bool) -> _Leg:
        sink = self._relay.feed if decode and self._relay is not None else None
        headers = self._single.headers + (IDS_HEADER if sink is not None else "")
        if self._number:
            headers += f"{ATTEMPT}: {self._number}\r\n"
        call = rank.worker.post(self._single.path, segments(body), sink, headers)
        booking, self._booking = self._booking, None
        if booking is None:  # last: what was not sent is not counted
            following = self._d.following if decode else None
            streams, generated = self._relay is not None, len(self._single.resume_ids)
            booking = Booking(rank, self._view, following, streams, generated)
        now = monotonic()
        leg = _Leg(rank, call, booking, decode, now, rank.worker.record.posted(now))
        self._legs.append(leg)
        if decode:
            rank.expect(call)
            relay, late = self._relay, self._late or not self._d.config.disaggregated
            slow = (lambda: False) if relay is None else (lambda: relay.paused)
            rank.silence.watch(call, now, relay is not None, late, slow)
        return leg

    def _return_credit(self) -> None:
        rank, self._credit = self._credit, None
        if rank is not None:
            self._d.return_credit(rank)

    def _clean_up(self) -> None:
        self._return_credit()
        self._d.fleet.leave_lane(self._single)
        if self._news is not None:
            self._news.cancel()
        if self._booking is not None:
            self._booking.cancel()
        for leg in self._legs:
            call = leg.call
            if self._ok:
                leg.rank.worker.record.answered(monotonic())
            elif leg.probe:
                self._unprobed(leg)
            if self._ok and not call.done.done():
                # The prefill's answer may trail the decode's last byte.
                self._loop.call_later(PREFILL_LINGER_S, call.close)
                call.done.add_done_callback(partial(_end_later, leg))
                continue
            if not self._ok and not call.answered:
                try:
                    leg.rank.worker.abort(self._rid)
                except Exception:  # best effort, as it is; the counts must go back
                    log.exception("%s could not be told to drop a request", leg.rank.worker.name)
                call.close()
            _end(leg, self._generated(leg), self._ok)

    def _unprobed(self, leg: _Leg) -> None:
        """The probe of a worker ended without a good answer."""
        record, call = leg.rank.worker.record, leg.call
        refused = call.answered and call.status >= 500 and call.status not in FULL
        if refused or (call.failed and call.kind != "closed"):
            record.failed(monotonic())
        else:
            record.unknown()

    def _generated(self, leg: _Leg) -> int:
        """Output tokens of this attempt as far as they are known."""
        if not leg.decode:
            return 0
        if self._relay is not None:
            return self._relay.tokens - len(self._single.resume_ids)
        if not self._ok or not leg.booking.followed:  # reading an answer costs more than it tells
            return 0
        return completion_tokens(bytes(leg.call.body))


def _end_later(leg: _Leg, _: asyncio.Future[bool]) -> None:
    _end(leg)


def _end(leg: _Leg, generated: int = 0, finished: bool = False) -> None:
    ok = leg.call.answered and leg.call.status < 500
    leg.booking.end(ok, generated, finished)
