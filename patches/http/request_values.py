"""Which values of a tokenized request a scheduler may get.

SGLang checks some in its tokenizer process and lets the rest through: a wrong type, a number that
no tensor of the sampler can hold, an id outside the vocabulary. A scheduler meets them in the midst
of a batch, raises, and takes the requests of everybody along. Here they are all looked at before,
by the types that SGLang itself declares and by the ranges that its tensors have. A pure function of
the request and the model: all ranks of a server decide alike.
"""

import functools
import json
import math
import re
import typing
from dataclasses import dataclass
from typing import Any

from toolkit.contract.stop_patterns import MAX_STOP, why_not

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_BIAS = 1e30
"""Added to a logit and divided by the smallest temperature (1e-6), still a finite float32."""
MAX_FLOAT32 = 3.4e38
PD_TOP_LOGPROBS = 128
"""Columns of the buffer in which prefill hands a token's log probabilities to decode."""
MAX_GRAMMAR = 1 << 16
"""Characters of a grammar. The compiler takes time and memory with more than the square of it."""
MAX_DEPTH = 64
"""Of lists and objects in a JSON schema: the compiler recurses in C++."""
MAX_ID = 512

REQUEST_FIELDS = (
    *("rid", "input_ids", "input_embeds", "mm_inputs", "sampling_params", "session_params"),
    *("multi_item_delimiter_indices", "positional_embed_overrides", "custom_logit_processor"),
    *("top_logprobs_num", "logprob_start_len", "token_ids_logprob", "routed_experts_start_len"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "decode_tp_size"),
    *("routed_dp_rank", "disagg_prefill_dp_rank", "priority"),
)
"""What is read of a `TokenizedGenerateReqInput`. A release that lacks one would have all its
requests refused, so each is in the patch's contract."""
SAMPLING_FIELDS = (
    *("temperature", "top_p", "min_p", "top_k", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "max_new_tokens", "min_new_tokens", "n"),
    *("stream_interval", "sampling_seed", "stop_token_ids", "stop_strs", "stop_regex_strs"),
    *("logit_bias", "custom_params", "json_schema", "regex", "ebnf", "structural_tag"),
)
"""And of its `SamplingParams`."""
"""Characters of an id or key that comes with a request."""

_NOT_TYPED = frozenset(
    {"input_ids", "input_text", "mm_inputs", "sampling_params", "time_stats", "input_embeds",
     "positional_embed_overrides", "num_items_assigned", "custom_params", "kv_hints"}
)  # fmt: skip
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the model and the server allow."""

    vocabulary: int
    context: int
    hidden: int
    disaggregated: bool
    calls: bool = False
    """A decode worker, which calls the prefill worker at the host that a request names."""
    processors: bool = False
    """`--enable-custom-logit-processor`."""
    seeds: bool = False
    """`--enable-deterministic-inference`."""


def wrong(request: Any, limits: RequestLimits) -> str | None:
    """What is wrong with a `TokenizedGenerateReqInput`; None when a scheduler may have it."""
    try:
        _check_types(request, "")
        _check_types(request.sampling_params, "sampling_params.")
        if request.session_params is not None:
            _check_types(request.session_params, "session_params.")
        _check_sampling(request.sampling_params, limits)
        _check_prompt(request, limits)
        _check_logprobs(request, limits)
        _check_routing(request, limits)
        if request.custom_logit_processor is not None:
            _check_processor(request.custom_logit_processor, limits)
    except _WrongError as error:
        return str(error)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # A value that not even the checks can compare.
        return f"the request has a value of a wrong type or range ({type(error).__name__})"
    return None


class _WrongError(ValueError):
    """Says what is wrong."""


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise _WrongError(message)


_PLAIN = (type(None), bool, int, float, str)


@functools.cache
def _types(kind: type) -> tuple[tuple[str, Any, frozenset[type]], ...]:
    """(field, declared type, the plain classes that it allows) of a struct's fields."""
    import msgspec

    return tuple(
        (field.name, field.type, _plain(field.type))
        for field in msgspec.structs.fields(kind)
        if field.name not in _NOT_TYPED
    )


def _plain(declared: Any) -> frozenset[type]:
    """The classes whose values need no closer look: not those of a Literal, which may be wrong."""
    members = typing.get_args(declared) if typing.get_origin(declared) is typing.Union else ()
    return frozenset(kind for kind in _PLAIN if kind in (members or (declared,)))


def _check_types(struct: Any, where: str) -> None:
    import msgspec

    kind: Any = type(struct)
    for name, declared, plain in _types(kind):
        value = getattr(struct, name)
        if type(value) is str:
            _need(_encodable(value), f"{where}{name} is no valid Unicode text")
        if type(value) in plain:
            continue
        try:
            # Says "Expected `int`, got `str`", and where in a list.
            msgspec.convert(value, declared)
        except (msgspec.ValidationError, OverflowError) as error:
            raise _WrongError(f"{where}{name}: {error}") from None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _within(name: str, value: Any, low: float, high: float) -> None:
    # Written so that NaN is outside.
    if value is None or low <= value <= high:
        return
    raise _WrongError(f"{name} must be in [{low}, {high}], got {value}")


def _check_sampling(params: Any, limits: RequestLimits) -> None:
    _within("temperature", params.temperature, 0, MAX_FLOAT32)
    for name in ("top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"):
        value = getattr(params, name)
        if not math.isfinite(value):
            raise _WrongError(f"{name} must be a finite number, got {value}")
    _need(params.repetition_penalty >= 1e-6, "repetition_penalty must be at least 1e-06")
    _need(
        not limits.seeds or params.min_p <= 0,
        "min_p is not possible on a worker with --enable-deterministic-inference",
    )
    _within("top_k", params.top_k, 1, MAX_INT32)
    _within("max_new_tokens", params.max_new_tokens, 0, MAX_INT32)
    _within("min_new_tokens", params.min_new_tokens, 0, MAX_INT32)
    _within("n", params.n, 0, MAX_INT32)
    _within("beam_width", getattr(params, "beam_width", 1), 1, 64)  # not in 0.5.17
    _within("stream_interval", params.stream_interval, 1, MAX_INT32)
    _within("sampling_seed", params.sampling_seed, -MAX_INT64 - 1, MAX_INT64)
    for token in params.stop_token_ids or ():
        _within("stop_token_ids", token, 0, limits.vocabulary - 1)
    texts = _texts(params.stop_strs)
    for text in texts:
        _need(_encodable(text), "stop is no valid Unicode text")
    size = sum(map(len, texts))
    _need(
        size <= MAX_STOP, f"stop has {size} characters, and at most {MAX_STOP} together are taken"
    )
    reason = why_not(_texts(params.stop_regex_strs))
    _need(reason is None, reason or "")
    _check_bias(params.logit_bias, limits)
    _check_grammar(params)
    custom = params.custom_params
    _need(
        custom is None or (isinstance(custom, dict) and all(type(key) is str for key in custom)),
        "custom_params must be an object",
    )
    if custom:
        budget = custom.get("thinking_budget")
        _need(budget is None or type(budget) is int, "thinking_budget must be an integer")
        _within("thinking_budget", budget, -MAX_INT32, MAX_INT32)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _check_bias(bias: Any, limits: RequestLimits) -> None:
    for token, value in (bias or {}).items():
        _need(
            token.isascii() and token.isdigit() and len(token) < 12, f"logit_bias: no id: {token!r}"
        )
        _within("logit_bias: an id", int(token), 0, limits.vocabulary - 1)
        _within(f"logit_bias of {token}", value, -MAX_BIAS, MAX_BIAS)


def _check_grammar(params: Any) -> None:
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        text = getattr(params, name)
        if text is None:
            continue
        _need(len(text) <= MAX_GRAMMAR, f"{name} is longer than {MAX_GRAMMAR} characters")
        _need("\x00" not in text, f"{name} contains a NUL")
        _need(_depth(text) <= MAX_DEPTH, f"{name} is nested deeper than {MAX_DEPTH}")
        if name in ("json_schema", "structural_tag"):
            _check_json(name, text)


def _depth(text: str) -> int:
    """How deep brackets of any kind are open at once; an escape or a string may make it more."""
    depth = most = 0
    for character in text:
        if character in "([{":
            depth += 1
            most = max(most, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return most


def _check_json(name: str, text: str) -> None:
    if text == "$$ANY$$":  # SGLang's own word for any JSON
        return
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"{name} is no JSON: {error}") from None


def _check_prompt(request: Any, limits: RequestLimits) -> None:
    ids = request.input_ids
    session = request.session_params
    # SGLang refuses no prompt, but not no ids beside a text. A session may know what came before.
    _need(
        bool(ids) or request.input_embeds is not None or bool(session and session.id),
        "input_ids cannot be empty",
    )
    if ids is not None and len(ids) and request.mm_inputs is None:
        low, high = min(ids), max(ids)
        if low < 0 or high >= limits.vocabulary:
            raise _WrongError(
                f"input_ids contains out-of-vocabulary token id {low if low < 0 else high}; "
                f"valid range is [0, {limits.vocabulary})."
            )
    if request.input_embeds is not None:
        _check_embeds(request.input_embeds, limits)
    overrides = request.positional_embed_overrides
    _need(
        overrides is None or type(overrides).__name__ == "PositionalEmbeds",
        "positional_embed_overrides cannot be given by a client",
    )
    length = len(ids or ())
    for name in ("multi_item_delimiter_indices", "token_indices_to_pool"):
        for index in getattr(request, name, None) or ():  # some came after 0.5.20
            _within(name, index, 0, length - 1)


def _check_embeds(embeds: Any, limits: RequestLimits) -> None:
    import numpy as np

    try:
        array = np.asarray(embeds, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise _WrongError("input_embeds must be lists of numbers, equally long") from None
    _need(
        array.ndim == 2 and array.shape[1] == limits.hidden,
        f"input_embeds must be of shape [tokens, {limits.hidden}]",
    )
    _need(bool(np.isfinite(array).all()), "input_embeds must be finite")


def _check_logprobs(request: Any, limits: RequestLimits) -> None:
    most = limits.vocabulary
    if limits.disaggregated:
        most = min(most, PD_TOP_LOGPROBS)
    _within("top_logprobs_num", request.top_logprobs_num, 0, most)
    _within("logprob_start_len", request.logprob_start_len, -1, MAX_INT32)
    for token in request.token_ids_logprob or ():
        _within("token_ids_logprob", token, 0, limits.vocabulary - 1)
    _within("routed_experts_start_len", request.routed_experts_start_len, 0, MAX_INT32)


def _check_routing(request: Any, limits: RequestLimits) -> None:
    rid = request.rid
    _need(type(rid) is str and 0 < len(rid) <= MAX_ID, f"rid must be text of 1 to {MAX_ID}")
    for name in ("extra_key", "cache_salt", "routing_key", "session_id", "lora_id"):
        value = getattr(request, name, None)
        _need(value is None or len(value) <= MAX_ID, f"{name} is longer than {MAX_ID}")
    host = request.bootstrap_host
    _need(host is None or _HOST.fullmatch(host) is not None, "bootstrap_host is no host")
    # SGLang answers 400 to a request without a room, and fails on a room whose host is missing.
    _need(
        host is not None or request.bootstrap_room is None or not limits.calls,
        "bootstrap_room needs the bootstrap_host of the prefill worker",
    )
    _within("bootstrap_port", request.bootstrap_port, 1, 65535)
    _within("bootstrap_room", request.bootstrap_room, 0, MAX_INT64)
    _within("decode_tp_size", request.decode_tp_size, 1, 65535)
    _within("routed_dp_rank", request.routed_dp_rank, 0, 65535)
    _within("disagg_prefill_dp_rank", request.disagg_prefill_dp_rank, 0, 65535)
    _within("priority", request.priority, -MAX_INT32, MAX_INT32)


def _check_processor(text: str, limits: RequestLimits) -> None:
    _need(limits.processors, "this server takes no custom logit processor")
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    try:
        CustomLogitProcessor.from_str(text)
    except Exception as error:  # it unpickles: anything can come of it
        raise _WrongError(f"custom_logit_processor: {type(error).__name__}: {error}") from None
