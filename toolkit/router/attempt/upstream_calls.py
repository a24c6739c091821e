"""The calls of one attempt: what each worker is sent."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.contract.headers import ATTEMPT, IDS
from toolkit.contract.prefill_only import HOST
from toolkit.router.packed import segments
from toolkit.router.request import WHOLE, SubRequest, new_room, public_id, ticket_body
from toolkit.router.upstream import Sink
from toolkit.router.upstream_call import RID_BYTES, Apart, UpstreamCall, set_rank

if TYPE_CHECKING:
    from toolkit.decide.reservation import Reservation
    from toolkit.router.attempt.early import Early
    from toolkit.router.relay import Relay
    from toolkit.router.worker import Rank

IDS_HEADER = f"{IDS}: 1\r\n"


@dataclass(slots=True)
class Answer:
    """A worker's complete answer to a request that does not stream. `headers`: those of it that go
    on to the client."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class UpstreamCalls:
    """The calls of an attempt in order. `number`: of the attempt; `key`: with which workers know
    the router."""

    __slots__ = ("_key", "_number", "_relay", "_sub_request", "all", "rid")

    def __init__(
        self, sub_request: SubRequest, relay: Relay | None, number: int, key: str | None
    ) -> None:
        self._sub_request = sub_request
        self._relay = relay
        self._number = number
        self._key = key
        # Never the client's, and all of one length: SGLang's abort takes every rid that begins
        # with the one it is given, whosever it is.
        self.rid = secrets.token_hex(RID_BYTES)
        self.all: list[UpstreamCall] = []

    def post(
        self,
        rank: Rank,
        body: dict[str, Any],
        reservation: Reservation,
        *,
        decode: bool,
        late: bool,
        early: Early | None = None,
        apart: Apart | None = None,
    ) -> UpstreamCall:
        """Send `body` to the rank. `late`: the prefill, if any, has run. `early`: reads a prefill's
        stream. `apart`: another upstream call gives the answer as yet."""
        relay, worker, role = self._relay, rank.worker, rank.worker.config.role
        sink: Sink | None = relay.feed if decode and relay is not None else None
        if early is not None:
            sink = early.feed
        if apart is not None:
            sink = apart.sink
        headers = self._sub_request.headers + (IDS_HEADER if sink is not None else "")
        if self._number:
            headers += f"{ATTEMPT}: {self._number}\r\n"
        long = sink is not None and early is None
        call = worker.post(self._sub_request.path, segments(body), sink, headers, long)
        rid, brought = self.rid, len(self._sub_request.resume_ids)
        if apart is not None:
            rid, brought = apart.rid, apart.brought
        self._sub_request.track.sent(self._number, worker.name, rank.dp_rank, role, rid)
        upstream_call = UpstreamCall(
            rank, call, reservation, decode, monotonic(), rid=rid, brought=brought, early=early
        )
        if apart is None:
            self.all.append(upstream_call)
        if decode and role != "prefill":
            rank.expect(call)
            slow = (lambda: False) if relay is None else (lambda: relay.paused)
            rank.silence.watch(call, upstream_call.begun, relay is not None, late, slow)
        return upstream_call

    def named(self, body: bytes) -> bytes:
        """A worker's answer under the id that the client knows."""
        return body.replace(self.rid.encode(), public_id(self._sub_request.rid))

    def body(self) -> dict[str, Any]:
        """What a worker that prefills and decodes both is sent."""
        if self._sub_request.endpoint in WHOLE:
            # SGLang wants as many ids as there are inputs, or none
            return dict(self._sub_request.body)
        body = {**ticket_body(self._sub_request, self.rid, self._key), "rid": self.rid}
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

    def split_body(self, prefill: Rank) -> dict[str, Any]:
        """What prefill and decode have in common: where they meet, and which DP rank of the prefill
        worker has the KV. The prefill must be told that too: else its rank registers, for decode to
        ask, by a blocking POST on the scheduler's thread, and under DP attention all ranks wait."""
        config = prefill.worker.config
        body = self.body()
        body["bootstrap_host"] = config.bootstrap_host or config.host
        body["bootstrap_port"] = config.bootstrap_port
        body["bootstrap_room"] = new_room(config.dp_size, prefill.dp_rank)
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
