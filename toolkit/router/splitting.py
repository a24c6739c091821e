"""From a client's body to sub-requests: parse and validate it, split n and batches.

What of a body may reach a worker, and with which values, is `toolkit.router.validate`'s to say;
here is what the router itself must understand.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from toolkit.contract.headers import CAPTURE
from toolkit.contract.request_class import RequestClass
from toolkit.policies.support.user import user_of
from toolkit.router import request_view
from toolkit.router.classes import class_of
from toolkit.router.errors import ApiError
from toolkit.router.request import (
    NOTHING,
    PATHS,
    Endpoint,
    Job,
    SubRequest,
    Wanted,
)
from toolkit.router.request_view import view_of
from toolkit.router.validate.check import check
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.parameters import PER_PROMPT
from toolkit.router.validate.refusal import invalid

if TYPE_CHECKING:
    from toolkit.settings.router.classes import Classes

DEEPEST = 200
"""Levels of JSON; orjson writes 254, Python and workers read some hundreds more."""
SPLIT = frozenset({"chat", "completions", "generate"})
"""Endpoints whose requests may ask for several answers."""
_BATCHED = (*PER_PROMPT, "rid", "image_data", "video_data", "audio_data")
"""Fields of /generate that may hold one entry for each prompt."""


def parse(path: str, raw: bytes, **known: Any) -> Job:
    """`split` of the body that these bytes are.

    Raises:
        ApiError: as `load` and `split`.
    """
    return split(path, *load(path, raw), **known)


def load(path: str, raw: bytes) -> tuple[Any, bool]:
    """The body; and True for what is not strictly JSON, yet read by SGLang.

    Raises:
        ApiError: 400 for malformed JSON, and for what is nested too deeply.
    """
    body, lax = _read(raw, PATHS[path])
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _too_deep(body):
        raise ApiError(400, f"The body is nested deeper than {DEEPEST} levels.")
    return body, lax


def split(
    path: str,
    body: Any,
    lax: bool,
    *,
    wanted: Wanted = NOTHING,
    headers: str = "",
    request_id: str = "",
    limit: int = 1024,
    vocabulary: int = 0,
    release: str = "",
    allow: frozenset[str] = frozenset(),
    capture: bool = False,
    label: str | None = None,
    routing_key: str | None = None,
    now: float = 0.0,
    classes: Classes | None = None,
    said_class: str | None = None,
    key: str = "",
) -> Job:
    """Check a body, as `load` gives it, and split it into sub-requests. `vocabulary` is the number
    of token ids, 0 when unknown; `release` of SGLang that the oldest worker has, empty when unknown
    (`toolkit.router.validate.declared.oldest`); `allow` what this deployment lets clients do
    (`toolkit.settings.router.permissions`); `capture`: the client wants the experts of its request
    kept.

    `label` is the client's own name for the kind of request and `routing_key` its word on where it
    belongs, if it gave them: they may tell of the prompt or of a person, and are never logged.
    `request_id`: the word for it in logs. `now`: when the request came, monotonic. `classes`: how
    the class of a request is found, None where this deployment has none; `said_class`: what its
    header says, `key`: the name of its client's key.

    Raises:
        ApiError: 400 for values that no worker should see and for combinations that cannot work
            here.
    """
    endpoint = PATHS[path]
    if not isinstance(body, dict):
        raise _type_error(body, endpoint)
    if capture and "capture" not in allow:
        raise ApiError(
            400,
            f"{CAPTURE}: this deployment does not hand out experts; it does with "
            '`capture_experts: true` in its file (or "capture" in `allow` of a router\'s own).',
        )
    named = _named(endpoint, body)
    kind = RequestClass.STANDARD if classes is None else class_of(classes, named, said_class, key)
    body = check(endpoint, body, BodyLimits(vocabulary, allow, release))
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
        rid=_base_rid(endpoint, body),
        stream=stream,
        sub_requests=[],
        merged=n > 1 or prompts is not None,
        per_prompt=n,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )
    for index in range(count):
        one = _one_body(endpoint, body, prompts, index // n, n)
        rid = job.rid if not job.merged else f"{job.rid}_{index}"
        if isinstance(body.get("rid"), list) and _usable(one.get("rid")):
            rid = one["rid"] if n == 1 else f"{one['rid']}_{index % n}"
        user = None
        if wanted.users:
            user = user_of(_named(endpoint, one), routing_key, request_view.SALT)
        first = index % n == 0
        if first:  # all samples of a prompt look the same
            view, size = view_of(endpoint, one, wanted, label, user, now)
            view = replace(view, request_class=kind)
        job.sub_requests.append(
            SubRequest(
                endpoint, path, one, rid, index, stream, view, headers, first, size,
                capture=capture, job=job.rid, request_id=request_id,
            )
        )  # fmt: skip
    return job


def _too_deep(body: Any) -> bool:
    level = [body] if isinstance(body, (dict, list)) else []
    for _ in range(DEEPEST + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inside for each in values if isinstance(each, (dict, list))]
        if not level:
            return False
    return True


def _read(raw: bytes, endpoint: Endpoint) -> tuple[Any, bool]:
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
        raise invalid([detail], endpoint) from error


def _check_text(body: dict[str, Any]) -> None:
    """Half a surrogate pair is JSON and no text: tokenizers fail at it."""
    try:
        json.dumps({**body, "rid": None}, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise ApiError(400, f"The body holds {half}, half of a surrogate pair.") from error


def _type_error(body: Any, endpoint: Endpoint) -> ApiError:
    detail = {
        "type": "model_attributes_type",
        "loc": ("body",),
        "msg": "Input should be a valid dictionary or object to extract fields from",
        "input": body if isinstance(body, (int, float, bool, type(None))) else "...",
    }
    return invalid([detail], endpoint)


def _named(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """A body that says in `user` whose it is, as Anthropic's do in `metadata.user_id`."""
    told = body.get("metadata") if endpoint == "messages" else None
    return {**body, "user": told.get("user_id")} if isinstance(told, dict) else body


def _base_rid(endpoint: Endpoint, body: dict[str, Any]) -> str:
    if endpoint == "responses":  # the answer's own id
        rid = body.get("request_id")
        return str(rid) if _usable(rid) else f"resp_{secrets.token_hex(16)}"
    rid = body.get("rid")
    return str(rid) if _usable(rid) else secrets.token_hex(16)


def _usable(rid: Any) -> bool:
    return isinstance(rid, str) and 0 < len(rid) <= 256 and rid.isprintable() and '"' not in rid


def _samples(endpoint: Endpoint, body: dict[str, Any]) -> int:
    if endpoint not in SPLIT:
        return 1
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
    if endpoint == "completions":
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            return prompt
        return None
    if endpoint != "generate":
        return None
    text, ids, embeds = body.get("text"), body.get("input_ids"), body.get("input_embeds")
    if text is not None:
        return text if isinstance(text, list) and text else None
    if ids is not None:
        return ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else None
    if isinstance(embeds, list) and embeds and isinstance(embeds[0], list) and embeds[0]:
        return embeds if isinstance(embeds[0][0], list) else None
    return None


def _one_body(
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
