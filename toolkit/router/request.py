"""Sub-requests: what came of a client's body, and what of it is written to workers.

A client's request is one sub-request for each prompt and each choice (`n`)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from toolkit.contract.headers import CAPTURE
from toolkit.contract.request_class import RequestClass
from toolkit.contract.ticket import TICKET_KEY, sign
from toolkit.policies.base import RequestView
from toolkit.router.errors import ApiError
from toolkit.router.retry_after import Refusals
from toolkit.router.track import Track

Endpoint = Literal[
    "chat", "completions", "generate", "messages", "responses", "count_tokens", "embeddings",
    "rerank", "score", "classify",
]  # fmt: skip

PATHS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/generate": "generate",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/score": "score",
    "/v1/classify": "classify",
}
WHOLE: frozenset[str] = frozenset({"embeddings", "rerank", "score", "classify"})
"""Endpoints that a worker answers by running a prompt and nothing else: no decode worker has a part
in them, nor the patches of prefill and decode apart."""


class Wanted(NamedTuple):
    """What policies look at that costs a digest: the prompt's blocks, its user, a hash of it."""

    blocks: bool = False
    users: bool = False
    hashes: bool = False


NOTHING = Wanted()


@dataclass(slots=True)
class SubRequest:
    """One prompt, one continuation: the unit that runs on workers. `index` is its choice. `rid` is
    what the client sees as its id; workers get another one for each attempt
    (`toolkit.router.attempt`). `first_sample`: of the n continuations of its prompt.
    `prompt_bytes`: of what was cut into blocks, 0 where nobody asked; `prompt_tokens`: 0 until a
    prefill worker has counted them. `capture`: workers are to send its experts to
    /toolkit/experts."""

    endpoint: Endpoint
    path: str
    body: dict[str, Any]
    rid: str
    index: int
    stream: bool
    view: RequestView
    headers: str = ""
    first_sample: bool = True
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    capture: bool = False
    resume_ids: list[int] = field(default_factory=list)
    job: str = ""
    """The id of the request that it is a part of."""
    request_id: str = ""
    """The word for it in logs (`toolkit.router.request_id`)."""
    refusals: Refusals = field(default_factory=Refusals)
    """What workers said that were too full for it."""
    track: Track = field(default_factory=Track)

    def wants_prompt_logprobs(self) -> bool:
        """Only the prefill computes them; its answer has to be merged into the decode's."""
        body = self.body
        if self.endpoint == "generate":
            start = body.get("logprob_start_len")
            return bool(body.get("return_logprob")) and isinstance(start, int) and start >= 0
        asked = body.get("logprobs") is not None  # 0: without alternatives
        return self.endpoint == "completions" and bool(body.get("echo")) and asked


@dataclass(slots=True)
class Job:
    """A client's request. `merged`: its sub-requests come back as one answer with choice
    indices."""

    endpoint: Endpoint
    rid: str
    stream: bool
    sub_requests: list[SubRequest]
    merged: bool
    per_prompt: int = 1
    include_usage: bool = False


def new_room(dp_size: int = 1, dp_rank: int = 0) -> int:
    """A bootstrap room: 63 random bits, never 0 (which some code paths take for "none").

    A prefill server with DP ranks takes a room only on rank `room % dp_size`: one that was sent to
    another rank fails there (`srt/disaggregation/common/conn.py`, "follow_bootstrap_room").
    """
    room = random.getrandbits(62) | 1
    return room - room % dp_size + dp_rank + (dp_size if room < dp_size else 0)


def ticket_body(
    sub_request: SubRequest,
    rid: str,
    key: str | None,
    resume: Sequence[int] | None = None,
    late: int = 0,
) -> dict[str, Any]:
    """The body with what the router itself asks of a worker, signed for this `rid`: the tokens that
    were generated already, for both sides (`patches.pd.resume`); `resume`, where it is not what
    this attempt began with, the last `late` of them placeholders (`patches.move`)."""
    resume = sub_request.resume_ids if resume is None else resume
    body = dict(sub_request.body)
    capture = sub_request.rid if sub_request.capture else ""
    kind = sub_request.view.request_class
    if not (resume or capture):
        # Workers that have no key stop nobody either.
        if not key or kind == RequestClass.STANDARD:
            return body
    elif not key:
        raise ApiError(400, f"{CAPTURE}: the workers have no key, so they keep no experts for you.")
    signed = sign(key, rid, resume=resume, late=late, capture=capture, request_class=kind)
    ticket = {TICKET_KEY: signed}
    if sub_request.endpoint == "generate":
        params = dict(body.get("sampling_params") or {})
        params["custom_params"] = {**(params.get("custom_params") or {}), **ticket}
        body["sampling_params"] = params
    else:
        body["custom_params"] = {**(body.get("custom_params") or {}), **ticket}
    return body


def public_id(rid: str) -> bytes:
    """An id as it stands inside a JSON string."""
    return orjson.dumps(rid)[1:-1]


def encode(body: dict[str, Any] | list[Any]) -> bytes:
    """JSON for a worker. What orjson refuses (NaN, huge integers) the standard library writes."""
    try:
        return orjson.dumps(body)
    except TypeError:
        return json.dumps(body).encode("utf-8", "surrogatepass")
