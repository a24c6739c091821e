"""From the decode's POST to the end: a worker's answer becomes the client's."""

from __future__ import annotations

import asyncio
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import orjson

from toolkit.router.attempt.cleaning import PREFILL_LINGER_S
from toolkit.router.attempt.outcomes import Outcomes
from toolkit.router.attempt.upstream_calls import Answer, UpstreamCalls
from toolkit.router.failure import failure_in
from toolkit.router.first import first_of
from toolkit.router.merge import put_prompt_logprobs
from toolkit.router.metrics import Timing
from toolkit.router.request import SubRequest
from toolkit.router.retry_after import passed
from toolkit.router.stream_memory import FORGOTTEN
from toolkit.router.upstream import Call
from toolkit.router.upstream_call import UpstreamCall

if TYPE_CHECKING:
    from toolkit.router.client import ClientStream
    from toolkit.router.metrics import Metrics
    from toolkit.router.moves.live import Live
    from toolkit.router.prefill_facts import PrefillFacts
    from toolkit.router.relay import Relay


class Relaying:
    """Follows the upstream calls of one attempt. `first`: it is the request's first one."""

    __slots__ = (
        "_arrived",
        "_client",
        "_facts",
        "_first",
        "_live",
        "_metrics",
        "_outcomes",
        "_relay",
        "_sub_request",
        "_timing",
        "_upstream_calls",
        "begun",
    )

    def __init__(
        self,
        metrics: Metrics,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        upstream_calls: UpstreamCalls,
        outcomes: Outcomes,
        timing: Timing,
        facts: PrefillFacts,
        arrived: float,
        first: bool,
        live: Live,
    ) -> None:
        self._metrics = metrics
        self._sub_request = sub_request
        self._relay = relay
        self._client = client
        self._upstream_calls = upstream_calls
        self._outcomes = outcomes
        self._timing = timing
        self._facts = facts
        self._arrived = arrived
        self._first = first
        self._live = live
        self.begun = False
        """The client has had its first token from the prefill."""

    def begin(self, upstream_call: UpstreamCall, prefill: UpstreamCall | None) -> None:
        """The call that answers has just been posted: its first bytes may come before the
        request's own task is awake."""
        if self._relay is None:
            return
        ids = (self._upstream_calls.rid, self._sub_request.rid)
        count = self._live.channel.channel.counter(upstream_call.reservation)
        self._relay.begin(upstream_call.call, hold=self._merges(prefill), count=count, ids=ids)

    def _merges(self, prefill: UpstreamCall | None) -> bool:
        """Whether the prefill's answer has something that the client's is to have."""
        return prefill is not None and self._sub_request.wants_prompt_logprobs()

    async def follow(
        self, upstream_call: UpstreamCall, prefill: UpstreamCall | None, late: bool
    ) -> Answer | None:
        """Until the answer is whole or streamed; a prefill that fails before the first byte
        counts."""
        posted_at = upstream_call.begun
        call, relay = upstream_call.call, self._relay
        merge = self._merges(prefill)
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
                    self._outcomes.check_prefill(prefill)
                if merge and relay is not None:
                    relay.release(_prefill_answer(prefill))
        if merge and prefill is not None and call.answered and call.status == 200:
            await self._late_prompt_logprobs(prefill)
        self._timing.first = monotonic() - posted_at
        if self._facts.done_at and self._facts.counted:  # after the decode was posted, maybe
            self._timing.prefill = self._facts.done_at - self._facts.posted_at
        if call.failed:
            raise self._outcomes.lost(upstream_call)
        if call.done.done() and call.status != 200:
            raise self._outcomes.refusal(upstream_call)
        if relay is None:
            body = bytes(call.body)
            failure = failure_in(body, self._sub_request.endpoint)
            if failure is not None:
                raise self._outcomes.told(upstream_call, failure)
            self._outcomes.prove(upstream_call)
            self._metrics.timing(self._timing, late)
            return self._answer(call, body, prefill if merge else None)
        if relay.failure is None or relay.first.done():
            self._outcomes.prove(upstream_call)
        await self._stream_to_end(upstream_call, relay, late)
        return None

    async def _stream_to_end(self, upstream_call: UpstreamCall, relay: Relay, late: bool) -> None:
        call = upstream_call.call
        if relay.first.done():
            if self._first:
                self._metrics.timing(self._timing, late)
                if not self.begun:
                    kind = self._sub_request.view.request_class
                    self._metrics.began(monotonic() - self._arrived, kind)
            first_at, had = monotonic(), relay.tokens
            assert self._client is not None
            await self._client.start(passed(call.headers, time()))
            upstream_call = await self._to_its_end(upstream_call)
            call = upstream_call.call
            if relay.tokens > had:
                self._metrics.tpot.observe((monotonic() - first_at) / (relay.tokens - had))
        if relay.ended:
            return
        if relay.failure is not None:
            begun = relay.sent.events
            raise self._outcomes.told(upstream_call, relay.failure, begun)
        if call.failed:
            raise self._outcomes.lost(upstream_call)
        raise self._outcomes.retry(upstream_call, "its stream ended early", "early")

    async def _to_its_end(self, upstream_call: UpstreamCall) -> UpstreamCall:
        """Until its stream has ended; the upstream call that it ended on, of those that it moved to
        within this attempt. GoOn: it is to be moved by another attempt."""
        while True:
            ordered = self._live.listen()
            # A bare await would cancel `done` together with this task.
            await first_of((upstream_call.call.done, ordered))
            if upstream_call.call.done.done():
                return upstream_call
            move, kind = self._live.move, self._live.kind
            if move is not None and not move.run and self._relay is not None:
                move.run = True
                if self._relay.forgotten:  # since it was ordered
                    self._live.move = None
                    move.end("kept", FORGOTTEN)
                    continue
                assert kind is not None
                await kind.run(self._live, move)
                assert self._live.upstream_call is not None
                upstream_call = self._live.upstream_call

    async def _late_prompt_logprobs(self, prefill: UpstreamCall) -> None:
        await first_of((prefill.call.done,), PREFILL_LINGER_S)
        self._outcomes.check_prefill(prefill)
        if self._relay is not None:
            self._relay.release(_prefill_answer(prefill))

    def _answer(self, call: Call, body: bytes, prefill: UpstreamCall | None) -> Answer:
        prompt = _prefill_answer(prefill) if prefill is not None else None
        if prompt is not None:
            answer = orjson.loads(body)
            put_prompt_logprobs(self._sub_request.endpoint, answer, prompt)
            body = orjson.dumps(answer)
        return Answer(call.status, self._upstream_calls.named(body), passed(call.headers, time()))


def _prefill_answer(prefill: UpstreamCall) -> dict[str, Any] | None:
    if not prefill.call.answered or prefill.call.status != 200:
        return None
    answer = orjson.loads(bytes(prefill.call.body))
    return answer if isinstance(answer, dict) else None
