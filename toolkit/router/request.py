"""From a client's body to single requests: parse, let the door check it, split n and batches.

What of a body may reach a worker, and with which values, is `toolkit.router.door`'s to say; here is
what the router itself must understand.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import orjson

from toolkit.contract.headers import CAPTURE
from toolkit.contract.ticket import TICKET_KEY, sign
from toolkit.policies.base import RequestView
from toolkit.policies.user import user_of
from toolkit.router.door.check import check
from toolkit.router.door.limits import Limits
from toolkit.router.errors import ApiError
from toolkit.router.poison import Record

Endpoint = Literal["chat", "completions", "generate"]

PATHS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/generate": "generate",
}

BLOCK_BYTES = 256
MAX_BLOCKS = 256
BYTES_PER_TOKEN = 4
"""A guess for texts, which the router cannot tokenize; the prefill's event has the true count."""

HUGE = 2**40
"""No limit of tokens is that high."""
MAX_LABEL = 64
"""Characters of a label that are looked at."""

DEEPEST = 200
"""Levels of JSON; orjson writes 254, Python and workers read some hundreds more."""

_SALT = os.urandom(16)
"""Of digests of users and prompts: nobody can look one up who is not this process."""

_BATCHED = (
    "rid", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "image_data", "video_data", "audio_data", "lora_path", "custom_logit_processor",
    "extra_key", "return_hidden_states", "return_sampling_mask", "sampling_logprobs_mode",
    "mm_hashes", "mm_content_hashes",
)  # fmt: skip
"""/generate fields that may hold one entry per prompt (`GenerateReqInput`, SGLang 0.5.21)."""


class Wanted(NamedTuple):
    """What policies look at that costs a digest: the prompt's blocks, its user, a hash of it."""

    blocks: bool = False
    users: bool = False
    hashes: bool = False


NOTHING = Wanted()


@dataclass(slots=True)
class Single:
    """One prompt, one continuation: the unit that runs on workers. `index` is its choice. `rid` is
    what the client sees as its id; workers get another one for each attempt (`attempt.py`).
    `first_sample`: of the n continuations of its prompt. `prompt_bytes`: of what was cut into
    blocks, 0 where nobody asked; `prompt_tokens`: 0 until a prefill worker has counted them.
    `capture`: workers are to send its experts to /toolkit/experts."""

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
    avoid: set[str] = field(default_factory=set)
    record: Record = field(default_factory=Record)
    faults: list[str] = field(default_factory=list)
    """Workers that failed it in a way that is theirs."""

    def wants_prompt_logprobs(self) -> bool:
        """Only the prefill computes them; its answer has to be merged into the decode's."""
        body = self.body
        if self.endpoint == "generate":
            start = body.get("logprob_start_len")
            return bool(body.get("return_logprob")) and isinstance(start, int) and start >= 0
        return self.endpoint == "completions" and bool(body.get("echo") and body.get("logprobs"))


@dataclass(slots=True)
class Job:
    """A client's request. `merged`: its singles come back as one answer with choice indices."""

    endpoint: Endpoint
    rid: str
    stream: bool
    singles: list[Single]
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


def parse(
    path: str,
    raw: bytes,
    *,
    wanted: Wanted = NOTHING,
    headers: str = "",
    limit: int = 1024,
    vocabulary: int = 0,
    allow: frozenset[str] = frozenset(),
    capture: bool = False,
    label: str | None = None,
    routing_key: str | None = None,
    now: float = 0.0,
) -> Job:
    """Split a body into singles. `vocabulary` is the number of token ids, 0 when unknown; `allow`
    what this deployment lets clients do (`toolkit.router.door.ALLOWABLE`); `capture`: the client
    wants the experts of its request kept.

    `label` is the client's own name for the kind of request and `routing_key` its word on where it
    belongs, if it gave them: they may tell of the prompt or of a person, and are never logged.
    `now`: when the request came, monotonic.

    Raises:
        ApiError: 400 for malformed JSON, for values that no worker should see and for combinations
            that cannot work here.
    """
    endpoint = PATHS[path]
    body, lax = _load(raw)
    if not isinstance(body, dict):
        raise _type_error(body)
    if capture and "capture" not in allow:
        raise ApiError(
            400,
            f"{CAPTURE}: this deployment does not hand out experts; it does with "
            '`capture_experts: true` in its file (or "capture" in `allow` of a router\'s own).',
        )
    body = check(endpoint, body, Limits(vocabulary, allow))
    if lax:
        _check_text(body)
    n = _samples(endpoint, body)
    prompts = _prompts(endpoint, body)
    count = n * (len(prompts) if prompts is not None else 1)
    if count > limit:
        raise ApiError(
            400,
            f"This request asks for {count} completions at once (prompts times n); the router "
            f"takes at most {limit}. Send several smaller requests.",
        )
    stream = body.get("stream") is True
    options = body.get("stream_options")
    job = Job(
        endpoint=endpoint,
        rid=_base_rid(body),
        stream=stream,
        singles=[],
        merged=n > 1 or prompts is not None,
        per_prompt=n,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )
    for index in range(count):
        one = _single_body(endpoint, body, prompts, index // n, n)
        rid = job.rid if not job.merged else f"{job.rid}_{index}"
        if isinstance(body.get("rid"), list) and _usable(one.get("rid")):
            rid = one["rid"] if n == 1 else f"{one['rid']}_{index % n}"
        user = user_of(one, routing_key, _SALT) if wanted.users else None
        first = index % n == 0
        if first:  # all samples of a prompt look the same
            view, size = _view(endpoint, one, wanted, label, user, now)
        job.singles.append(
            Single(
                endpoint, path, one, rid, index, stream, view, headers, first, size, capture=capture
            )
        )
    return job


def _load(raw: bytes) -> tuple[Any, bool]:
    """And True for what is not strictly JSON, yet read by SGLang."""
    body, lax = _read(raw)
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _too_deep(body):
        raise ApiError(400, f"The body is nested deeper than {DEEPEST} levels.")
    return body, lax


def _too_deep(body: Any) -> bool:
    level = [body] if isinstance(body, (dict, list)) else []
    for _ in range(DEEPEST + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inside for each in values if isinstance(each, (dict, list))]
        if not level:
            return False
    return True


def _read(raw: bytes) -> tuple[Any, bool]:
    try:
        return orjson.loads(raw), False
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw), True  # Infinity, NaN, lone surrogates: what SGLang itself accepts
    except (ValueError, RecursionError) as error:
        # The shape of FastAPI's own error, as SGLang prints it.
        position = getattr(error, "pos", 0)
        reason = getattr(error, "msg", str(error))
        detail = {
            "type": "json_invalid",
            "loc": ("body", position),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": reason},
        }
        raise _validation_error(detail) from error


def _check_text(body: dict[str, Any]) -> None:
    """Half a surrogate pair is JSON and no text: tokenizers fail at it."""
    try:
        json.dumps({**body, "rid": None}, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise ApiError(400, f"The body holds {half}, half of a surrogate pair.") from error


def _validation_error(detail: dict[str, Any]) -> ApiError:
    """FastAPI's list of errors, in the flat object that SGLang makes of it."""
    flat = {
        "object": "error",
        "message": str([detail]),
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }
    return ApiError(400, str([detail]), raw=orjson.dumps(flat))


def _type_error(body: Any) -> ApiError:
    return _validation_error(
        {
            "type": "model_attributes_type",
            "loc": ("body",),
            "msg": "Input should be a valid dictionary or object to extract fields from",
            "input": body if isinstance(body, (int, float, bool, type(None))) else "...",
        }
    )


def _base_rid(body: dict[str, Any]) -> str:
    rid = body.get("rid")
    return str(rid) if _usable(rid) else secrets.token_hex(16)


def _usable(rid: Any) -> bool:
    return isinstance(rid, str) and 0 < len(rid) <= 256 and rid.isprintable() and '"' not in rid


def _samples(endpoint: Endpoint, body: dict[str, Any]) -> int:
    where = body.get("sampling_params") if endpoint == "generate" else body
    first = where[0] if isinstance(where, list) and where else where
    if not isinstance(first, dict):
        return 1
    if isinstance(where, list):
        different = {item.get("n", 1) for item in where if isinstance(item, dict)}
        if len(different) > 1:
            raise ApiError(
                400, "The parallel_sample_num should be the same for all samples in sample params."
            )
    n: int = first.get("n", 1)
    best_of = body.get("best_of")
    if isinstance(best_of, int) and best_of > 1 and best_of != n:
        raise ApiError(
            400,
            f"best_of={best_of} is not supported: SGLang does not rank samples. "
            "Ask for n samples and choose among them.",
        )
    beam = first.get("beam_width")
    if isinstance(beam, int) and beam > 1:
        raise ApiError(400, "beam_width > 1 is not supported with prefill and decode apart.")
    return n


def _prompts(endpoint: Endpoint, body: dict[str, Any]) -> list[Any] | None:
    """The prompts of a batch; None for a single prompt (or for what only a worker can judge)."""
    if endpoint == "chat":
        return None
    if endpoint == "completions":
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            return prompt
        return None
    text, ids, embeds = body.get("text"), body.get("input_ids"), body.get("input_embeds")
    if text is not None:
        return text if isinstance(text, list) and text else None
    if ids is not None:
        return ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else None
    if isinstance(embeds, list) and embeds and isinstance(embeds[0], list) and embeds[0]:
        return embeds if isinstance(embeds[0][0], list) else None
    return None


def _single_body(
    endpoint: Endpoint, body: dict[str, Any], prompts: list[Any] | None, index: int, n: int
) -> dict[str, Any]:
    one = dict(body)
    if endpoint != "generate":
        if n > 1:
            one["n"] = 1
        if prompts is not None:
            one["prompt"] = prompts[index]
        return one
    if prompts is not None:
        key = next(k for k in ("text", "input_ids", "input_embeds") if body.get(k) is not None)
        one[key] = prompts[index]
        for name in _BATCHED:
            value = body.get(name)
            if isinstance(value, list) and len(value) == len(prompts):
                one[name] = value[index]
        ids = body.get("token_ids_logprob")
        if isinstance(ids, list) and ids and isinstance(ids[0], list) and len(ids) == len(prompts):
            one["token_ids_logprob"] = ids[index]
    if n > 1 and isinstance(one.get("sampling_params"), dict):
        one["sampling_params"] = {**one["sampling_params"], "n": 1}
    return one


def _view(
    endpoint: Endpoint,
    body: dict[str, Any],
    wanted: Wanted,
    label: str | None,
    user: str | None,
    now: float,
) -> tuple[RequestView, int]:
    """And the bytes of the prompt, 0 where nobody wants to look at them."""
    if endpoint == "chat":
        prompt: Any = body.get("messages")
    elif endpoint == "completions":
        prompt = body.get("prompt")
    else:
        prompt = body.get("text") if body.get("text") is not None else body.get("input_ids")
    digest = wanted.blocks or wanted.hashes
    if isinstance(prompt, str):
        size = len(prompt) // BYTES_PER_TOKEN + 1
        text = prompt.encode("utf-8", "surrogatepass") if digest else b""
    elif isinstance(prompt, list) and endpoint != "chat":
        size, text = len(prompt), encode(prompt) if digest else b""
    elif isinstance(prompt, list):
        size = sum(_message_size(message) for message in prompt) // BYTES_PER_TOKEN + 1
        text = json.dumps([body.get("tools"), prompt]).encode() if digest else b""
    else:
        size, text = 1, b""
    most, least = _limits(endpoint, body)
    view = RequestView(
        prompt_tokens=size,
        blocks=_blocks(text) if wanted.blocks else (),
        user=user,
        label=label[:MAX_LABEL] if label else None,
        max_new_tokens=most,
        min_new_tokens=least,
        prompt_hash=_hash(text) if wanted.hashes and text else None,
        now=now,
    )
    return view, len(text)


def _limits(endpoint: Endpoint, body: dict[str, Any]) -> tuple[int, int]:
    """The most and the least tokens that it may generate, 0 where it does not say; of what is no
    such number a worker says what is wrong."""
    if endpoint == "generate":
        where = body.get("sampling_params")
        if not isinstance(where, dict):
            return 0, 0
        most, least = where.get("max_new_tokens"), where.get("min_new_tokens")
    else:
        where = body
        most = body.get("max_completion_tokens") if endpoint == "chat" else None
        most, least = most or body.get("max_tokens"), body.get("min_tokens")
    most = most if type(most) is int and 0 < most < HUGE else 0
    if where.get("ignore_eos") is True:
        return most, most
    return most, least if type(least) is int and 0 < least < HUGE else 0


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8, key=_SALT).digest(), "big")


def anonymous(block: int) -> int:
    """Another name for a block (`RequestView.blocks`), as lasting as this process."""
    name = blake2b(block.to_bytes(8, "big"), digest_size=6, key=_SALT).digest()
    return int.from_bytes(name, "big")


def _message_size(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return len(content)
    return len(str(content)) if content is not None else 0


def _blocks(text: bytes) -> tuple[int, ...]:
    """Chained hashes of whole blocks: equal up to i means equal text up to the end of block i."""
    chain, out = b"", []
    for start in range(0, min(len(text), BLOCK_BYTES * MAX_BLOCKS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = blake2b(chain + text[start : start + BLOCK_BYTES], digest_size=8).digest()
        out.append(int.from_bytes(chain, "big"))
    return tuple(out)


def ticket_body(single: Single, rid: str, key: str | None) -> dict[str, Any]:
    """The body with what the router itself asks of a worker, signed for this `rid`: the tokens that
    were generated already, for both sides (`patches.resume`)."""
    body = dict(single.body)
    capture = single.rid if single.capture else ""
    if not (single.resume_ids or capture):
        return body
    if not key:
        raise ApiError(400, f"{CAPTURE}: the workers have no key, so they keep no experts for you.")
    ticket = {TICKET_KEY: sign(key, rid, resume=single.resume_ids, capture=capture)}
    if single.endpoint == "generate":
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
