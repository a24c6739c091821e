"""The table of request validation against the SGLang that is importable: names, types, and what it
says of types.

Importing SGLang takes ten seconds and changes other libraries, so that this runs in a process of
its own: `python -m tests.unit.router.validation_contract` prints a JSON object, name of a
comparison to what it found ("" where all is well). `test_validation_contract.py` reads it, for each
release.
"""

import copy
import dataclasses
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from patches.stubs import CPU_STUBS, declare_torchvision_operators
from toolkit.contract import stop_patterns
from toolkit.router.splitting import SPLIT
from toolkit.router.validate import content, rules, validators
from toolkit.router.validate.declared import DECLARED, lacks, oldest
from toolkit.router.validate.declared import SAMPLING as SAMPLING_PARAMS
from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.meanings import meanings
from toolkit.router.validate.models import model
from toolkit.router.validate.parameters import MOST_BY_DEFAULT
from toolkit.settings.router.permissions import ALLOWABLE

EVERYTHING = frozenset(ALLOWABLE)

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**64), 1.5, 2.0, -0.5, 1e30, "", "a", "5",
    "true", "yes", "1.5", [], [1], ["a"], [[1]], [None], [1, "a"], [["a"]], [{}], {}, {"a": 1},
    {"1": 2.5}, {"a": {"b": []}}, [True], "none", "auto", {"type": "text"}, {"function": 5},
    {"type": "json_schema"}, [{"role": "user"}], [{"role": "user", "content": 5}],
    [{"role": "nobody", "content": "a"}], [{"role": "assistant", "content": [{"type": "x"}]}],
    [{"role": "user", "content": [{"type": "thinking", "text": "x"}]}], [{"type": "function"}],
    [{"function": {"name": "f", "parameters": 5, "strict": "maybe"}}],
    [{"function": {"name": "f", "strict": None, "key_order": 5, "defer_loading": "yes"}}],
    [{"role": "root", "content": "a", "prefix": "x"}], [{"role": "USER", "phase": "x"}], "ultra",
    [{"role": "assistant", "content": [{"type": "thinking", "text": "x", "thinking": "y"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5, "detail": "x"}}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {
        "url": "a", "detail": "default", "max_long_side_pixel": "x"}}]}],
    [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "a", "fps": 0}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": 5}}]}],
    [{"role": "user", "content": [{"type": "audio_url", "audio_url": {}}, {"type": "text"}]}],
    [{"role": "tool", "tool_calls": [{"function": {"arguments": 5}}], "tools": [{}]}],
    {"type": "structural_tag", "structures": [{"begin": 5}], "triggers": "a"},
    {"type": "json_schema", "json_schema": {"name": 5, "strict": "yes"}},
]  # fmt: skip


BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": []},
    "completions": {"prompt": "a"},
    "generate": {},
    "messages": {"model": "m", "messages": [], "max_tokens": 1},
    "count_tokens": {"model": "m", "messages": []},
    "responses": {"input": "a"},
    "embeddings": {"input": "a"},
    "classify": {"input": "a"},
    "rerank": {"query": "a", "documents": []},
    "score": {},
}


def _sglang() -> dict[str, Any]:
    from sglang.srt.entrypoints.anthropic.protocol import (
        AnthropicCountTokensRequest,
        AnthropicMessagesRequest,
    )
    from sglang.srt.entrypoints.openai import protocol
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
    from sglang.srt.managers.io_struct import GenerateReqInput

    return {
        "chat": ChatCompletionRequest,
        "completions": CompletionRequest,
        "generate": GenerateReqInput,
        "messages": AnthropicMessagesRequest,
        "count_tokens": AnthropicCountTokensRequest,
        "responses": protocol.ResponsesRequest,
        "embeddings": protocol.EmbeddingRequest,
        "classify": protocol.ClassifyRequest,
        "rerank": protocol.V1RerankReqInput,
        "score": protocol.ScoringRequest,
    }


def _names(kind: Any) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(kind.model_fields)


def _installed() -> str:
    """The supported release that the installed SGLang is, or comes after."""
    return oldest(frozenset({version("sglang")}))


def _has(place: str) -> set[str]:
    """The names that the installed release has, by what was read from its source."""
    return {name for name in DECLARED[place] if not lacks(place, name, _installed())}


def every_field_of_sglang_s_is_in_the_table(endpoint: str, theirs: dict[str, Any]) -> None:
    """What its source was found to declare is what it has when it is imported."""
    names = _names(theirs[endpoint])
    unknown = names - ENDPOINTS[endpoint].keys()
    assert not unknown, f"decide what becomes of {sorted(unknown)} (toolkit/router/validate)"
    assert _has(endpoint) == names


def every_sampling_parameter_is_in_the_table() -> None:
    from sglang.srt.sampling.sampling_params import SamplingParams

    assert set(SamplingParams.__struct_fields__) == _has(SAMPLING_PARAMS)
    assert set(SamplingParams.__struct_fields__) <= SAMPLING.keys()
    fields = dict(
        zip(SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True)
    )
    assert fields["max_new_tokens"] == MOST_BY_DEFAULT


def _schema(kind: Any) -> Any:
    return _bare(TypeAdapter(kind).json_schema())


def _bare(schema: Any) -> Any:
    """Without what has no say in what is valid."""
    if isinstance(schema, dict):
        words = {"title", "description", "default", "examples", "deprecated"}
        named = {"properties", "$defs"}
        return {
            key: ({k: _bare(v) for k, v in value.items()} if key in named else _bare(value))
            for key, value in schema.items()
            if key not in words
        }
    # typing keeps one of two unions that differ in order only, whichever was first in a process.
    return sorted(map(str, map(_bare, schema))) if isinstance(schema, list) else schema


def the_types_are_sglang_s(endpoint: str, theirs: dict[str, Any]) -> None:
    """What is made of its source is what it has when it is imported."""
    hints = get_type_hints(theirs[endpoint], include_extras=True)
    for name in _has(endpoint):
        if ENDPOINTS[endpoint][name].typed and name != "response_format":  # of XGrammar, too
            kind, _ = meanings(_installed()).field(endpoint, name)
            assert _schema(kind) == _schema(hints[name]), name


def _verdict(adapter: Any, body: Any) -> Any:
    try:
        adapter.validate_python(copy.deepcopy(body), from_attributes=True)
    except ValidationError as error:
        # Sorted: typing keeps one of two unions that differ in order only, the first of a process.
        return sorted(str(detail) for detail in error.errors(include_url=False))
    except Exception as error:  # what SGLang answers 500 to
        return error
    return None


def wrong_types_are_told_in_sglang_s_words(endpoint: str, theirs: dict[str, Any]) -> None:
    base = BASES[endpoint]
    adapter = TypeAdapter(theirs[endpoint])
    ours = TypeAdapter(model(endpoint, EVERYTHING, _installed()))
    compared = 0
    for name in _has(endpoint):
        field = ENDPOINTS[endpoint][name]
        if not field.passes(EVERYTHING) or field.unread:
            continue
        for value in VALUES:
            body = {**base, name: value}
            said = _verdict(adapter, body)
            if isinstance(said, Exception) or _otherwise(name, value):
                continue
            assert _verdict(ours, body) == said, (name, value)
            compared += 1
    assert compared > (900 if endpoint in SPLIT else 80)


def _otherwise(name: str, value: Any) -> bool:
    """Where SGLang's validators fill in, and what a structural tag's format may be."""
    if name == "tool_choice" and value is None:
        return True
    return name == "response_format" and isinstance(value, dict)


def what_is_copied_from_sglang_is_what_it_says() -> None:
    from sglang.srt.sampling import sampling_params as theirs_too
    from sglang.srt.utils.field_validators import validate_optional_list_i64_1d_2d
    from transformers import PreTrainedTokenizerBase

    for name, ours in (
        ("MAX_STOP_REGEX_LEN", stop_patterns.MAX_BYTES),
        ("MAX_STOP_REGEX_COUNT", stop_patterns.MAX_PATTERNS),
        ("MAX_STOP_COUNT", rules.MAX_STOPS),
    ):
        assert getattr(theirs_too, name, ours) == ours, "0.5.17 has no limits"
    arguments = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    assert arguments - {"kwargs", "documents"} <= content.RENDERING
    for value in VALUES:
        verdicts = []
        for judge in (validate_optional_list_i64_1d_2d, validators.ids):
            try:
                verdicts.append(judge(value))
            except ValueError as error:
                verdicts.append(str(error))
        assert verdicts[0] == verdicts[1], value


def messages_of_ranges_are_sglang_s() -> None:
    """Each wrong value goes to `SamplingParams.verify` and to our validation."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    from toolkit.router.errors import ApiError
    from toolkit.router.validate.limits import BodyLimits
    from toolkit.router.validate.parameters import checked

    wrong: list[dict[str, Any]] = [
        {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.5},
        {"min_p": 2}, {"top_k": 0}, {"top_k": -7}, {"frequency_penalty": 9},
        {"presence_penalty": -3.5}, {"repetition_penalty": 0}, {"min_new_tokens": -1},
        {"max_new_tokens": -5}, {"min_new_tokens": 9, "max_new_tokens": 3},
        {"min_new_tokens": 500}, {"logit_bias": {"1000": 1}}, {"logit_bias": {"-1": 1}},
        {"beam_width": 0}, {"stop": ["a"] * 40}, {"stop_regex": "a" * 300},
        {"stop_regex": ["a"] * 40},
    ]  # fmt: skip
    for params in wrong:
        if params.keys() - set(SamplingParams.__struct_fields__):
            continue
        if _installed() == "0.5.17" and "stop" in str(params):
            continue  # it has no limits of stop strings
        said = ours = ""
        try:
            made = SamplingParams(**params)
            if "stop" in str(params):
                made.normalize(None)
            made.verify(1000)
        except ValueError as error:
            said = str(error)
        try:
            checked(params, BodyLimits(vocabulary=1000))
        except ApiError as error:
            ours = error.message
        assert said
        assert ours == said


def nested_models_have_sglang_s_fields() -> None:
    from sglang.srt.entrypoints.openai import protocol

    nested = DECLARED.keys() - ENDPOINTS.keys() - {SAMPLING_PARAMS}
    assert len(nested) > 20
    for name in nested:
        theirs = getattr(protocol, name, None)
        if isinstance(theirs, type) and issubclass(theirs, BaseModel):
            assert meanings(_installed())[name].model_fields.keys() == theirs.model_fields.keys()
        else:
            assert _has(name) == set()


EACH: tuple[Callable[[str, dict[str, Any]], None], ...] = (
    every_field_of_sglang_s_is_in_the_table,
    the_types_are_sglang_s,
    wrong_types_are_told_in_sglang_s_words,
)
ONCE: tuple[Callable[[], None], ...] = (
    every_sampling_parameter_is_in_the_table,
    what_is_copied_from_sglang_is_what_it_says,
    messages_of_ranges_are_sglang_s,
    nested_models_have_sglang_s_fields,
)
NAMES = [f"{each.__name__}[{endpoint}]" for each in EACH for endpoint in ENDPOINTS]
NAMES += [each.__name__ for each in ONCE]


def main() -> None:
    sys.path.insert(0, str(CPU_STUBS))
    declare_torchvision_operators()
    theirs, found = _sglang(), {}
    runs: list[Callable[[], None]] = [
        partial(each, endpoint, theirs) for each in EACH for endpoint in ENDPOINTS
    ]
    for name, compare in zip(NAMES, [*runs, *ONCE], strict=True):
        try:
            compare()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
