"""Runs sub-requests to their end, on the workers that the decider names.

`Dispatcher.run` repeats `Attempt`s: each has its own bootstrap room and rid, since the room of a
failed transfer is dead and a decode posted to it hangs.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from toolkit.decide import messages as m
from toolkit.policies.base import RequestView
from toolkit.router import resumable
from toolkit.router.attempt.attempt import Attempt, Serving
from toolkit.router.errors import ApiError, Retry
from toolkit.router.metrics import Metrics
from toolkit.router.moves import GoOn, Live, Moves
from toolkit.router.one_token import is_one
from toolkit.router.packed import segments
from toolkit.router.request import SubRequest
from toolkit.router.request_channel import RequestChannel
from toolkit.router.stream_memory import FORGOTTEN
from toolkit.settings.router.config import RouterConfig

if TYPE_CHECKING:
    from toolkit.router.attempt.upstream_calls import Answer
    from toolkit.router.client import ClientStream
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.decider_channel import DeciderChannel
    from toolkit.router.prefills import PrefillWaits
    from toolkit.router.relay import Relay
    from toolkit.router.switches import Switches

log = logging.getLogger("toolkit.router")


class Dispatcher:
    """Runs sub-requests to the end."""

    def __init__(
        self,
        config: RouterConfig,
        known_workers: ConfiguredWorkers,
        channel: DeciderChannel,
        metrics: Metrics,
        prefills: PrefillWaits,
        moves: Moves,
        switches: Switches,
    ) -> None:
        self.config = config
        self.known_workers = known_workers
        self.channel = channel
        self.metrics = metrics
        self.moves = moves
        self.switches = switches
        self._serving = Serving(known_workers, metrics, prefills, switches)

    async def run(
        self,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        arrived: float,
    ) -> Answer | None:
        """Run a sub-request to its end: an answer, or None when the relay has streamed it.

        Raises:
            ApiError: what the client gets instead.
        """
        channel = RequestChannel(self.channel)
        served = False
        try:
            with self.moves.running(sub_request, relay, channel) as live:
                answer = await self._run(channel, live, sub_request, relay, client, arrived)
                served = True
                return answer
        finally:
            channel.close(served)

    async def _run(
        self,
        channel: RequestChannel,
        live: Live,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        arrived: float,
    ) -> Answer | None:
        number, view = 0, sub_request.view
        begin: m.Message = self._arrival(channel.number, sub_request, view, arrived)
        while True:
            attempt = Attempt(
                self._serving, channel, sub_request, relay, client, number, arrived, live, view
            )
            moved = False
            try:
                return await attempt.run(begin)
            except GoOn:
                assert relay is not None
                moved = True
                sub_request.track.moves += 1
                sub_request.resume_ids = _ids(relay)
            except Retry as failure:
                await self._fail(channel, sub_request, failure)
                self._prepare_again(sub_request, relay, failure)
                live.failed(failure.worker)
            number += 1
            had = len(sub_request.resume_ids)
            view = (
                replace(sub_request.view, prompt_tokens=sub_request.view.prompt_tokens + had)
                if had
                else sub_request.view
            )
            begin = m.NextAttempt(channel.number, view, had, moved, live.take_place())

    def _arrival(
        self, number: int, sub_request: SubRequest, view: RequestView, arrived: float
    ) -> m.Arrive:
        if not self.config.disaggregated:
            shape: m.Shape = "plain"
        elif sub_request.endpoint == "count_tokens":
            shape = "prefill"
        else:
            shape = "one_token" if is_one(sub_request) else "split"
        return m.Arrive(
            number,
            view,
            shape,
            streams=sub_request.stream,
            arrived=arrived,
            deadline=arrived + self.config.request_timeout_s,
            digest=_digest(sub_request) if self.channel.quarantines else b"",
        )

    async def _fail(self, channel: RequestChannel, sub_request: SubRequest, failure: Retry) -> None:
        """Return when the request is to be run again. ApiError: what its client gets instead."""
        sub_request.track.failures.append(str(failure))
        attempts, name = len(sub_request.track.failures), sub_request.request_id
        log.warning("request %s: attempt %d failed: %s", name, attempts, failure)
        channel.failure = failure
        failed = m.Failed(
            channel.number,
            failure.worker,
            failure.kind,
            failure.begun,
            failure.proven,
            failure.suspects,
            _digest(sub_request),
        )
        try:
            await channel.send(failed)
        except ApiError as answer:
            if answer is not failure.answer or answer.final:
                log.error("request %s is not run again: %s", name, answer.message)
            raise answer from failure

    def _prepare_again(self, sub_request: SubRequest, relay: Relay | None, failure: Retry) -> None:
        if relay is None or not relay.sent.events:
            self.metrics.retries.inc()
            self.metrics.retried += 1
            return
        if relay.forgotten:
            message = f"The worker of this stream went away, and {FORGOTTEN}. Send it again."
            raise ApiError(502, message, "WorkerFailed") from failure
        try:
            sub_request.resume_ids = _ids(relay)
        except ApiError:
            raise failure.answer from failure
        unknown = not sub_request.resume_ids and relay.sent.progress().has_output
        if unknown or (sub_request.resume_ids and not self.known_workers.worker_key):
            # A plain SGLang does not tell the ids, and goes on from none: what the client has
            # cannot be continued.
            raise failure.answer from failure
        lost = resumable.why_not(sub_request) if sub_request.resume_ids else None
        if lost is not None:
            message = (
                f"The worker of this stream went away, and no other one can go on with it: {lost}. "
                "Send the request again."
            )
            raise ApiError(502, message, "WorkerFailed") from failure
        self.metrics.resumes.inc()
        self.metrics.resumed += 1


def _ids(relay: Relay) -> list[int]:
    """What the client has. ApiError: a worker told ids that are none."""
    try:
        return relay.known_ids()
    except ValueError as error:
        raise ApiError(502, "A worker told ids of tokens that are none.", "WorkerFailed") from error


def _digest(sub_request: SubRequest) -> bytes:
    """Of what a request asks for, whoever sends it and under whatever id."""
    asked = {key: value for key, value in sub_request.body.items() if key not in ("rid", "user")}
    digest = blake2b(sub_request.path.encode(), digest_size=16)
    for piece in segments(asked):
        digest.update(piece)
    return digest.digest()
