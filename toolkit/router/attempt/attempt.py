"""One attempt of a sub-request: a prefill call and a decode call that share a room, each on the
rank that the decider names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.decide.messages import Message, Prefilled
from toolkit.router.attempt.cleaning import clean_up
from toolkit.router.attempt.early import Early
from toolkit.router.attempt.outcomes import Outcomes
from toolkit.router.attempt.relaying import Relaying
from toolkit.router.attempt.upstream_calls import Answer, UpstreamCalls, prefill_body
from toolkit.router.first_token import PATCH, why_decode
from toolkit.router.metrics import Metrics, Timing
from toolkit.router.moves.base import GoOn
from toolkit.router.prefill_facts import PrefillFacts
from toolkit.router.prefills import PrefillWait, PrefillWaits
from toolkit.router.switches import Switches
from toolkit.router.upstream_call import UpstreamCall, set_rank

if TYPE_CHECKING:
    from toolkit.decide import messages as m
    from toolkit.decide.ranks import RankState
    from toolkit.policies.base import RequestView
    from toolkit.router.client import ClientStream
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.moves.live import Live
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest
    from toolkit.router.request_channel import RequestChannel
    from toolkit.router.worker import Rank


EVENT_S = 0.05
"""Between a prefill's answer and the event that says that it is done: they come on two
connections."""


@dataclass(slots=True)
class Serving:
    """What all attempts share."""

    known_workers: ConfiguredWorkers
    metrics: Metrics
    prefills: PrefillWaits
    switches: Switches


class Attempt:
    """`run` ends with an answer, with None (streamed), or with Retry, GoOn or ApiError.

    However it ends, both workers are told to drop what still runs, and every reservation goes back.
    """

    def __init__(
        self,
        serving: Serving,
        channel: RequestChannel,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        number: int,
        arrived: float,
        live: Live,
        view: RequestView,
    ) -> None:
        self._serving = serving
        self._channel = channel
        self._live = live
        self._sub_request = sub_request
        self._number = number
        self._relay = relay
        self._client = client
        self._upstream_calls = UpstreamCalls(
            sub_request, relay, number, serving.known_workers.worker_key
        )
        self.facts = PrefillFacts(view)
        self.rid = self._upstream_calls.rid
        # A prompt counts once, however often it is run, and however many samples are wanted.
        self.sampled = number == 0 and sub_request.first_sample
        self._outcomes = Outcomes(channel, sub_request, self._upstream_calls)
        self._arrived = arrived
        self._timing = Timing()
        self._relaying = Relaying(
            serving.metrics, sub_request, relay, client, self._upstream_calls, self._outcomes,
            self._timing, self.facts, arrived, first=number == 0, live=live,
        )  # fmt: skip
        self._late = True
        """The decode rank is chosen when the prefill has run, if there is one."""
        self._body: dict[str, Any] = {}
        """What prefill and decode have in common."""
        self._prefill: UpstreamCall | None = None
        self._answers: UpstreamCall | None = None
        """The call whose answer is the client's."""
        self._wait: PrefillWait | None = None

    async def run(self, begin: Message) -> Answer | None:
        """Ask the decider for workers (`begin`), and follow their answer to its end."""
        ok = moved = False
        try:
            self._channel.attempt = self
            await self._channel.send(begin)
            assert self._answers is not None
            late = self._late and self._prefill is not None
            answer = await self._relaying.follow(self._answers, self._prefill, late)
            ok = True
            return answer
        except GoOn:
            moved = True
            raise
        finally:
            self._channel.attempt = None
            self._live.off()
            if self._wait is not None:
                self._wait.over()
            if self._number == 0 and self.facts.counted:
                self._sub_request.prompt_tokens = self.facts.view.prompt_tokens
            request_id = self._sub_request.request_id
            clean_up(
                self._channel.channel, self._upstream_calls, self._relay, request_id, ok, moved
            )

    def prefill(self, order: m.PrefillOrder) -> None:
        """The decider's order."""
        rank, calls = self._rank(order.rank), self._upstream_calls
        self._timing.queue = monotonic() - self._arrived
        if order.whole:
            body = calls.prefill_only_body(rank)
            self._answers = self._post(rank, body, order, decode=True)
            if self._answers is not None:
                self._relaying.begin(self._answers, None)
                self._serving.metrics.prefill_only.inc()
                self._channel.go_on()
            return
        self._late = order.late
        self._body = calls.split_body(rank)
        early = self._early(rank)
        body = prefill_body(self._body, rank, early is not None)
        posted = self._post(rank, body, order, decode=False, early=early)
        if posted is None:
            return
        self._prefill, self.facts.posted_at = posted, monotonic()
        posted.call.done.add_done_callback(self._prefill_answered)
        if order.late:
            self._wait = self._serving.prefills.wait(
                rank.worker, calls.rid, order.request, order.reservation, self.facts, self.sampled
            )

    def decode(self, order: m.DecodeOrder) -> None:
        """The decider's order; of a plain worker, or one that only counts, all of the request."""
        rank, calls = self._rank(order.rank), self._upstream_calls
        if self._prefill is None:
            self._body = calls.body()
            self._timing.queue = monotonic() - self._arrived
        elif self._late:
            facts = self.facts
            told_at = facts.told_at or monotonic()
            self._timing.prefill = (facts.done_at or told_at) - facts.posted_at
            self._timing.decide = monotonic() - told_at
        set_rank(self._body, rank)
        posted = self._post(rank, self._body, order, decode=True)
        if posted is None:
            return
        self._answers = posted
        self._relaying.begin(posted, self._prefill)
        if self._wait is not None:
            self._wait.decoding()
        self._live.at(posted, calls, self.facts.view)
        self._channel.go_on()

    def _prefill_answered(self, _: object) -> None:
        """The prefill's call has ended."""
        prefill = self._prefill
        if prefill is None or self._answers is not None or self._channel.turn.done():
            return
        try:
            self._outcomes.check_prefill(prefill)
        except Exception as error:
            # A decode that is posted to the room of a failed prefill would hang.
            self._channel.fail(error)
            return
        asyncio.get_running_loop().call_later(EVENT_S, self._without_event)

    def _without_event(self) -> None:
        """The event that says that the prefill is done has not come, though it is."""
        facts = self.facts
        if facts.told_at or self._answers is not None or self._channel.turn.done():
            return
        facts.done_at = facts.told_at = monotonic()
        self._channel.channel.send(Prefilled(self._channel.number, facts.view))

    def _post(
        self,
        rank: Rank,
        body: dict[str, Any],
        order: m.PrefillOrder | m.DecodeOrder,
        decode: bool,
        early: Early | None = None,
    ) -> UpstreamCall | None:
        """The call; None: it could not be posted, and the attempt fails with that."""
        calls, reservation = self._upstream_calls, order.reservation
        facts = self.facts
        runs = decode and facts.told_at > 0 and not facts.done_at  # its prompt, still
        late = self._late and not runs
        try:
            return calls.post(rank, body, reservation, decode=decode, late=late, early=early)
        except Exception as error:
            self._channel.channel.give_back(reservation)
            self._channel.fail(error)
            return None

    def _rank(self, rank: RankState) -> Rank:
        name, dp_rank = rank.key
        return self._serving.known_workers.named(name).ranks[dp_rank]

    def _early(self, prefill: Rank) -> Early | None:
        """Who passes on the first token of this prefill; None where decode is to tell it."""
        relay, serving, late = self._relay, self._serving, self._late
        if relay is None or serving.switches.first_token == "decode" or relay.sent.events:
            return None
        told = PATCH in prefill.worker.hello.patches
        tickets = bool(serving.known_workers.worker_key)
        if why_decode(self._sub_request, late=late, told=told, tickets=tickets):
            return None
        return Early(self._sub_request, relay, self._upstream_calls.rid, self._begin)

    def _begin(self) -> None:
        """The client has its first token."""
        assert self._client is not None
        self._client.begin()
        self._relaying.begun = True
        metrics = self._serving.metrics
        metrics.early.inc()
        if self._number == 0:
            metrics.began(monotonic() - self._arrived, self.facts.view.request_class)
