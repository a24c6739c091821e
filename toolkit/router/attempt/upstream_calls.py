"""The calls of one attempt: what each worker is sent, and the load that a call stands for."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.contract.headers import ATTEMPT, IDS
from toolkit.contract.prefill_only import HOST
from toolkit.router.packed import segments
from toolkit.router.rank import Rank
from toolkit.router.request import WHOLE, SubRequest, new_room, public_id, ticket_body
from toolkit.router.reservation import Reservation
from toolkit.router.upstream import Sink
from toolkit.router.upstream_call import RID_BYTES, Apart, UpstreamCall, set_rank

if TYPE_CHECKING:
    import asyncio

    from toolkit.contract.events import PrefillDone
    from toolkit.policies.base import RequestView
    from toolkit.router.attempt.early import Early
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.relay import Relay

IDS_HEADER = f"{IDS}: 1\r\n"


@dataclass(slots=True)
class Answer:
    """A worker's complete answer to a request that does not stream. `headers`: those of it that go
    on to the client."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class UpstreamCalls:
    """The calls of an attempt in order, and what else it holds until it ends."""

    __slots__ = (
        "_d",
        "_number",
        "_relay",
        "_sub_request",
        "all",
        "credit",
        "event",
        "reservation",
        "rid",
    )

    def __init__(
        self, dispatcher: Dispatcher, sub_request: SubRequest, relay: Relay | None, number: int
    ) -> None:
        self._d = dispatcher
        self._sub_request = sub_request
        self._relay = relay
        self._number = number
        # Never the client's, and all of one length: SGLang's abort takes every rid that begins
        # with the one it is given, whosever it is.
        self.rid = secrets.token_hex(RID_BYTES)
        self.all: list[UpstreamCall] = []
        self.credit: Rank | None = None
        self.reservation: Reservation | None = None
        """Of a decode that is chosen and not posted yet."""
        self.event: asyncio.Future[PrefillDone | None] | None = None
        """Of the prefill being done."""

    def post(
        self,
        rank: Rank,
        body: dict[str, Any],
        view: RequestView,
        *,
        decode: bool,
        late: bool,
        early: Early | None = None,
        apart: Apart | None = None,
    ) -> UpstreamCall:
        """Send `body` to the rank. `late`: it was chosen when the prefill had run. `early`: reads a
        prefill's stream. `apart`: another upstream call gives the answer as yet."""
        sink: Sink | None = self._relay.feed if decode and self._relay is not None else None
        if early is not None:
            sink = early.feed
        if apart is not None:
            sink = apart.sink
        headers = self._sub_request.headers + (IDS_HEADER if sink is not None else "")
        if self._number:
            headers += f"{ATTEMPT}: {self._number}\r\n"
        call = rank.worker.post(self._sub_request.path, segments(body), sink, headers)
        reservation, self.reservation = self.reservation, None
        generates = decode and rank.worker.config.role != "prefill"
        if reservation is None:  # last: what was not sent is not counted
            following = self._d.following if generates else None
            streams, generated = self._relay is not None, len(self._sub_request.resume_ids)
            reservation = Reservation(rank, view, following, streams, generated)
        now = monotonic()
        probe = rank.worker.record.posted(now)
        rid, brought = self.rid, len(self._sub_request.resume_ids)
        if apart is not None:
            rid, brought = apart.rid, apart.brought
        worker, role = rank.worker, rank.worker.config.role
        self._sub_request.track.sent(self._number, worker.name, rank.dp_rank, role, rid)
        upstream_call = UpstreamCall(
            rank, call, reservation, decode, now, probe, rid=rid, brought=brought, early=early
        )
        if apart is None:
            self.all.append(upstream_call)
        if generates:
            rank.expect(call)
            relay, late = self._relay, late or not self._d.config.disaggregated
            slow = (lambda: False) if relay is None else (lambda: relay.paused)
            rank.silence.watch(call, now, relay is not None, late, slow)
        return upstream_call

    def return_credit(self) -> None:
        """Another request may be prefilled there."""
        rank, self.credit = self.credit, None
        if rank is not None:
            self._d.return_credit(rank)

    def named(self, body: bytes) -> bytes:
        """A worker's answer under the id that the client knows."""
        return body.replace(self.rid.encode(), public_id(self._sub_request.rid))

    def body(self) -> dict[str, Any]:
        """What a worker that prefills and decodes both is sent."""
        key = self._d.known_workers.worker_key
        if (
            self._sub_request.endpoint in WHOLE
        ):  # SGLang wants as many ids as there are inputs, or none
            return dict(self._sub_request.body)
        body = {**ticket_body(self._sub_request, self.rid, key), "rid": self.rid}
        if self._sub_request.endpoint == "responses":
            body["request_id"] = self.rid
        return body

    def prefill_only_body(self, prefill: Rank) -> dict[str, Any]:
        """What a prefill worker is sent that no decode worker will ask for the KV."""
        body = self.body()
        body["bootstrap_host"] = HOST
        body["bootstrap_room"] = new_room(prefill.worker.config.dp_size, prefill.dp_rank)
        set_rank(body, prefill)
        return body

    def split_body(self, prefill: Rank, room: int) -> dict[str, Any]:
        """What prefill and decode have in common: where they meet, and which DP rank of the prefill
        worker has the KV. The prefill must be told that too: else its rank registers, for decode to
        ask, by a blocking POST on the scheduler's thread, and under DP attention all ranks wait."""
        config = prefill.worker.config
        body = self.body()
        body["bootstrap_host"] = config.bootstrap_host or config.host
        body["bootstrap_port"] = config.bootstrap_port
        body["bootstrap_room"] = room
        if config.dp_size > 1:
            body["disagg_prefill_dp_rank"] = prefill.dp_rank
        return body


def prefill_body(body: dict[str, Any], prefill: Rank, stream: bool) -> dict[str, Any]:
    """What the prefill worker is sent. `stream`: its first token is for the client."""
    body = {**body, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    set_rank(body, prefill)
    return body
