"""What passes validation, what is dropped and what is refused."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.router.errors import ApiError
from toolkit.router.splitting import parse
from toolkit.router.validate.check import _validate, check
from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.field import Fate
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.models import known, plain
from toolkit.router.validate.printed import document
from toolkit.router.validate.private import is_ours, without_ours
from toolkit.settings.router.permissions import ALLOWABLE

LIMITS = BodyLimits(vocabulary=1000)
BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "generate": {"text": "hi"},
    "messages": {
        "model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]
    },
    "count_tokens": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "embeddings": {"input": "hi"},
    "classify": {"input": "hi"},
    "rerank": {"query": "hi", "documents": ["a"]},
    "score": {},
}  # fmt: skip


def refused(endpoint: str, limits: BodyLimits = LIMITS, **fields: Any) -> str:
    with pytest.raises(ApiError) as error:
        check(endpoint, {**BASES[endpoint], **fields}, limits)
    assert error.value.status == 400
    json.loads(error.value.body(endpoint))
    return error.value.message


def passed(endpoint: str, limits: BodyLimits = LIMITS, **fields: Any) -> dict[str, Any]:
    return check(endpoint, {**BASES[endpoint], **fields}, limits)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        # Each of these killed a real worker, or got SGLang's 500.
        ({"logit_bias": ""}, "logit_bias must be an object"),
        ({"logit_bias": []}, "logit_bias must be an object"),
        ({"logit_bias": {"1": "x"}}, "logit_bias must have values in"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias must have values in"),
        ({"top_k": 1e30}, "top_k must be an integer from 1 to 2"),
        ({"top_k": 10**30}, "top_k must be an integer from 1 to 2"),
        ({"regex": [[]]}, "regex must be a string"),
        ({"json_schema": {"type": "object"}}, "json_schema must be a string"),
        ({"n": []}, "n must be an integer"),
        ({"n": None}, "n must be an integer"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": True}, "temperature must be a number"),
        ({"stream_interval": 0}, "stream_interval must be an integer from 1"),
        ({"stop_token_ids": [10**9]}, r"stop_token_ids must be token ids in \[0, 1000\)"),
        ({"stop_regex": "("}, "is no regular expression"),
        ({"stop_regex": "\\"}, "is no regular expression"),
        ({"stop_regex": r"(a)\1"}, "back reference"),
        ({"stop_regex": "a{1,4000}"}, "at most 1000 are matched"),
        ({"stop_regex": ["a"] * 40}, "at most 32 stop_regex patterns"),
        ({"stop_regex": "é" * 129}, "258 bytes, over the 256-byte limit"),
        ({"stop": ["a" * 2000] * 3}, "at most 4096 characters together, got 6000"),
        ({"ebnf": "root ::= root"}, "rule 'root' never ends"),
        ({"ebnf": 'root ::= "a" | b\nb ::= "x" (b | b "y")'}, "rule 'b' never ends"),
        ({"json_schema": '{"$ref": "#"}'}, "only refers to itself"),
        ({"json_schema": '{"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": '
                         '[{"$ref": "#/$defs/a"}]}}}'}, "only refers to itself"),
        ({"json_schema": "{"}, "must be a JSON schema as a string"),
        ({"json_schema": '{"items":' * 100 + "{}" + "}" * 100}, "nested more than 64 levels"),
        ({"json_schema": "5"}, "must be a JSON schema"),
        ({"regex": "(" * 100 + ")" * 100}, "must not nest more than 64"),
        ({"structural_tag": "[]"}, "must be an object"),
        ({"structural_tag": "{}"}, "structures and triggers, or a format"),
        ({"no_such_parameter": 1}, "Unexpected keyword argument 'no_such_parameter'"),
        ({"is_normalized": True}, "not a client's to set"),
        ({"custom_params": 5}, "custom_params must be an object"),
        ({"custom_params": {"thinking_budget": "x"}}, "thinking_budget must be an integer"),
        ({"min_new_tokens": 500}, r"must be in \[0, max_new_tokens\(128\)\]"),
    ],
)  # fmt: skip
def test_sampling_parameters_that_no_worker_sees(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words) as error:
        check("generate", {"text": "a", "sampling_params": params}, LIMITS)
    assert error.value.status == 400
    with pytest.raises(ApiError, match=words):
        body = {"text": ["a", "b"], "sampling_params": [{"n": 1}, params]}
        check("generate", body, LIMITS)


@pytest.mark.parametrize(
    ("endpoint", "fields", "words"),
    [
        ("completions", {"logprobs": 100000}, "logprobs must be in [0, 1000]"),
        ("completions", {"prompt": [99999.0]}, "out-of-vocabulary token id 99999"),
        ("completions", {"prompt": [[1], [-1]]}, "out-of-vocabulary token id -1"),
        ("completions", {"max_tokens": 0}, "max_tokens must be positive"),
        ("completions", {"n": 10**30}, "n must be an integer"),
        ("chat", {"input_ids": [10**7]}, "out-of-vocabulary token id 10000000"),
        ("chat", {"top_logprobs": -1}, "top_logprobs must be in [0, 1000]"),
        ("chat", {"top_k": 2**40}, "top_k must be an integer"),
        ("chat", {"logit_bias": {"5": 1e30}}, "logit_bias must have values in"),
        ("chat", {"response_format": 5}, "response_format"),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"$ref": "#"}}}}, "only refers to itself"),
        ("chat", {"response_format": {"type": "json_schema", "schema": {"properties": 5}}},
         "properties must be an object"),
        ("chat", {"reasoning": {"effort": 10**400}}, "effort must be"),
        ("chat", {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template is not allowed"),
        ("chat", {"chat_template_kwargs": {"tokenize": True}}, "no variable of the template"),
        ("chat", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}]},
         "unsupported content type 'image_url'"),
        ("chat", {"model": "base:adapter"}, "names a LoRA adapter"),
        ("messages", {"model": "base:adapter"}, "names a LoRA adapter"),
        ("responses", {"model": "base:adapter"}, "would answer with the model alone"),
        ("responses", {"store": True}, "store: true is not taken from clients: workers keep no"),
        ("responses", {"input": []}, "input cannot be an empty list"),
        ("responses", {"background": True}, "background is not taken from clients"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id is not taken"),
        ("responses", {"conversation": "c"}, "send the whole conversation"),
        ("responses", {"prompt": {"id": "p"}}, "SGLang has no stored prompts"),
        ("responses", {"max_output_tokens": 1}, "max_output_tokens must be an integer from 2"),
        ("responses", {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "http://10.0.0.1/"}]}]},
         "input holds input_image"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [
            {"type": "image", "source": {"type": "url", "url": "/etc/passwd"}}]}]}]},
         "messages holds image"),
        ("messages", {"tools": [{"name": "f", "input_schema": {"items": [[]] * 20_000}}]},
         "tools[0].input_schema"),
        ("messages", {"max_tokens": 0}, "max_tokens: Value error, max_tokens must be positive"),
        ("embeddings", {"input": [{"image": "/etc/passwd"}]}, "input holds image"),
        ("rerank", {"documents": [[{"type": "image_url", "image_url": {"url": "/etc/x"}}]]},
         "documents holds image_url"),
        ("generate", {"sampling_params": [{"n": []}]}, "there is only one prompt"),
        ("generate", {"text": ["a"], "sampling_params": []}, "0 values for 1 prompts"),
        ("generate", {"text": []}, "cannot be an empty list"),
        ("generate", {"return_logprob": [True]}, "there is only one prompt"),
        ("generate", {"return_sampling_mask": [0]}, "there is only one prompt"),
        ("generate", {"top_logprobs_num": 10**6}, "top_logprobs_num must be in"),
        ("generate", {"token_ids_logprob": [5000]}, "out-of-vocabulary token id 5000"),
        ("generate", {"text": None}, "Either text, input_ids or input_embeds"),
        ("generate", {"text": None, "input_ids": [1, 10**6]}, "out-of-vocabulary"),
        ("generate", {"text": None, "input_ids": [[1], []]}, "input_ids cannot be empty."),
    ],
)  # fmt: skip
def test_fields_that_no_worker_sees(endpoint: str, fields: dict[str, Any], words: str) -> None:
    assert words in refused(endpoint, **fields)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("generate", {"sampling_params": {"ebnf": 'root ::= "a" root | "b"'}}),
        ("generate", {"sampling_params": {"ebnf": 'root ::= ("a" | root "b")? [^"\\]]+ # c\n'}}),
        ("generate", {"sampling_params": {"regex": r"\d{3}-\d{4}"}}),
        ("generate", {"sampling_params": {"json_schema": json.dumps(
            {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {
                "type": "null"}]}}, "required": ["next"]})}}),
        ("generate", {"sampling_params": {"top_k": -1, "logit_bias": {"5": -100, "6": 1.5}}}),
        ("generate", {"sampling_params": {"stop_regex": [r"\n\d+\.", "(?:END|STOP)", "(a+)+$"]}}),
        ("generate", {"sampling_params": {"temperature": None, "stop": None}}),
        ("chat", {"store": True, "metadata": {"a": "b"}, "service_tier": "auto"}),
        ("chat", {"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"toolkit_version": {"type": "string"}}}}}]}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        ("completions", {"crash_after": 3, "standin_counts": [1, 2]}),
    ],
)  # fmt: skip
def test_what_is_good_goes_on_as_it_came(endpoint: str, fields: dict[str, Any]) -> None:
    body = {**BASES[endpoint], **fields}
    before = copy.deepcopy(body)
    assert check(endpoint, body, LIMITS) == body == before


def test_the_router_sees_what_a_worker_will_read() -> None:
    """SGLang takes these for numbers and truth values; a router that did not would count one
    sample and relay no stream."""
    body = passed(
        "completions",
        n="3",
        stream="true",
        max_tokens="7",
        stream_options={"include_usage": "yes"},
        prompt=[1.0, 2.0],
    )
    assert (body["n"], body["stream"], body["max_tokens"]) == (3, True, 7)
    assert body["stream_options"] == {"include_usage": True}
    assert body["prompt"] == [1, 2]
    assert all(type(each) is int for each in body["prompt"])


SPELLINGS = ["toolkit", "toolkit_resume", "Toolkit-Resume", "TOOL_KIT", " tool kit ", "t-o-o-l-kit",
             "ｔｏｏｌｋｉｔ_capture", "toolkitx", "_toolkit", "tool\u200bkit"]  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_nobody_speaks_in_the_toolkit_s_name(name: str) -> None:
    assert is_ours(name)
    custom = {name: ["x"], "mine": [{name: 1, "a": {name: 2}}], "b": 3}
    clean = {"mine": [{"a": {}}], "b": 3}
    for endpoint in ("chat", "completions"):
        body = passed(endpoint, custom_params=custom, unknown={"deep": [custom]}, **{name: 1})  # type: ignore[arg-type]
        assert body["custom_params"] == clean
        assert body["unknown"] == {"deep": [clean]}
        assert name not in body
    body = passed("generate", sampling_params={"custom_params": custom, name: 7}, **{name: 1})  # type: ignore[arg-type]
    assert body["sampling_params"] == {"custom_params": clean}
    body = check(
        "generate", {"text": ["a", "b"], "sampling_params": [{}, {"custom_params": custom}]}, LIMITS
    )
    assert body["sampling_params"] == [{}, {"custom_params": clean}]


def test_sglang_s_own_custom_params_are_not_a_client_s() -> None:
    body = passed("chat", custom_params={"__sglang_reasoning_end_token_ids": "x", "a": 1})
    assert body["custom_params"] == {"a": 1}


def test_names_that_only_look_alike_stay() -> None:
    for name in ("tool", "tools", "my_toolkit", "kit"):
        assert not is_ours(name)
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": [deep]}
    assert without_ours(deep) is deep


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_row_does_what_it_says(endpoint: str) -> None:
    for name, field in ENDPOINTS[endpoint].items():
        if field.policy is Fate.DROP:
            assert name not in passed(endpoint, **{name: {"any": ["thing"]}})  # type: ignore[arg-type]
        elif field.policy is Fate.REFUSE:
            assert name in refused(endpoint, **{name: "x"})  # type: ignore[arg-type]
            assert name not in passed(endpoint, **{name: field.default})
            assert name not in passed(endpoint, **{name: None})  # type: ignore[arg-type]


def test_a_deployment_can_allow() -> None:
    data = "data:image/png;base64,AAAA"
    media, urls = frozenset({"media"}), frozenset({"media", "media_urls"})
    for allow, url, good in (
        (frozenset[str](), data, False),
        (media, data, True),
        (media, "http://10.0.0.1/a.png", False),
        (media, "/etc/passwd", False),
        (urls, "https://example.com/a.png", True),
        (urls, "/etc/passwd", False),
        (urls, "file:///etc/passwd", False),
    ):
        limits = BodyLimits(1000, allow)
        part = {"type": "image_url", "image_url": {"url": url}}
        chat = {"messages": [{"role": "user", "content": [part]}]}
        if good:
            passed("generate", limits, image_data=[url])
            passed("chat", limits, **chat)
        else:
            refused("generate", limits, image_data=[url])
            refused("chat", limits, **chat)
        block = {"type": "image", "source": {"type": "url", "url": url}}
        talk = {"messages": [{"role": "user", "content": [block]}]}
        (passed if good else refused)("messages", limits, **talk)
    lora = BodyLimits(allow=frozenset({"lora"}))
    assert passed("chat", lora, lora_path="a")["lora_path"] == "a"
    assert passed("messages", lora, model="base:a")["model"] == "base:a"
    assert "lora" in refused("chat", lora_path="a")
    assert passed("chat", BodyLimits(allow=frozenset({"priority"})), priority=5)["priority"] == 5
    assert "priority" not in passed("chat", priority=5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["true", "5", "auto", "\ud800", "data:", "$$ANY$$", "(", '{"$ref": "#"}'])
    | st.integers(-(10**400), 10**400),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.text(max_size=8)
        | st.sampled_from(["role", "content", "type", "function", "name", "schema", "n", "1"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
HINTS: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(st.fixed_dictionaries({"role": JSON | st.just("user"), "content": JSON})),
    "response_format": st.fixed_dictionaries({"type": st.just("json_schema")},
                                             optional={"schema": JSON, "json_schema": JSON}),
    "tools": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries(
        {"name": JSON, "parameters": JSON})}), max_size=2),
    "sampling_params": st.lists(st.dictionaries(st.sampled_from(list(SAMPLING)), JSON, max_size=3),
                                max_size=3)
    | st.dictionaries(st.sampled_from(list(SAMPLING)), JSON, max_size=3),
    "text": st.lists(st.text(), max_size=3),
    "custom_params": st.dictionaries(st.sampled_from([*SPELLINGS, "a"]), JSON),
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_good_or_a_400(endpoint: str, data: st.DataObject) -> None:
    names = st.sampled_from([*ENDPOINTS[endpoint], "toolkit_x", "unknown"])
    body = dict(BASES[endpoint])
    for name in data.draw(st.lists(names, max_size=3)):
        body[name] = data.draw(JSON | HINTS.get(name, JSON))
    allow = data.draw(st.sampled_from([frozenset[str](), frozenset(ALLOWABLE)]))
    limits = BodyLimits(data.draw(st.sampled_from([0, 1000])), allow)
    before = repr(body)
    try:
        good = check(endpoint, body, limits)
    except ApiError as error:
        assert error.status == 400
        json.loads(error.body(endpoint))
        return
    finally:
        assert repr(body) == before
    assert not any(is_ours(name) for name in good)
    for name in good.keys() & ENDPOINTS[endpoint].keys():
        assert ENDPOINTS[endpoint][name].passes(allow)
    # NaN is not itself
    assert repr(check(endpoint, good, limits)) == repr(good)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_what_passes_without_pydantic_is_what_passes_with_it(
    endpoint: str, data: st.DataObject
) -> None:
    body = dict(BASES[endpoint])
    for name in data.draw(st.lists(st.sampled_from(list(ENDPOINTS[endpoint])), max_size=3)):
        body[name] = data.draw(JSON | HINTS.get(name, JSON))
    rows = known(endpoint, LIMITS.allow).rows
    easy = {name: body[name] for name in body.keys() & rows.keys() if plain(rows[name], body[name])}
    whole = {**BASES[endpoint], **easy}
    _validate(endpoint, whole, LIMITS)
    assert {name: repr(whole[name]) for name in easy} == {n: repr(v) for n, v in easy.items()}


def test_ordinary_requests_pass_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr("toolkit.router.validate.check._validate", never)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    ordinary: dict[str, Any] = {
        "model": "m",
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 5,
        **usage,
    }
    assert passed("chat", user="u", **ordinary)["stream"] is True
    assert passed("completions", stop="x", seed=1, **ordinary)["max_tokens"] == 5
    params = {"max_new_tokens": 3, "top_k": 5}
    assert passed("generate", stream=True, sampling_params=params)["sampling_params"] == params
    for wrong in ({"temperature": 1}, {"stream": "true"}, {"model": None}, {"messages": [7]}):
        with pytest.raises(AssertionError, match="the long way"):
            passed("chat", **wrong)


def test_the_documents_table_has_every_field() -> None:
    rows = document()
    names = {name for fields in (*ENDPOINTS.values(), SAMPLING) for name in fields}
    assert [name for name in sorted(names) if f"| `{name}` |" not in rows] == []
    columns = (
        "| field | of | what becomes of it | values | since | first token | goes on | one token |"
    )
    assert columns in rows
    watermark = (
        "| `watermark` | chat, text, sampling_params | passed | object | 0.5.22 | decode | no"
    )
    assert f"{watermark} | decode |" in rows
    assert "| `thinking` | chat | passed |  | 0.5.23, dropped before | prefill | yes |" in rows
    assert "| `mm_data_mooncake` | generate | dropped |  | to 0.5.17 |  |" in rows
    assert "| `bootstrap_host` | messages | dropped |  | 0.5.22 |  |" in rows
    assert "stays with its worker, unless the temperature is 0 |" in rows


def test_a_reason_is_a_sentence() -> None:
    for fields in (*ENDPOINTS.values(), SAMPLING):
        short = [name for name, row in fields.items() if len(row.why.split()) < 4]
        assert short == [], "say why, so that a client understands it"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [{}] * 200_000}),
        ("/v1/completions", {"prompt": ["a"] * 100_000 + [7]}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": ["x"] * 200_000}),
        ("/v1/chat/completions", {"messages": [7] * 200_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [7] * 20_000}]}),
        ("/generate", {"input_ids": [None] * 200_000}),
    ],
)
def test_a_long_list_of_wrong_entries_gets_a_short_answer(path: str, body: dict[str, Any]) -> None:
    """It was one error for each entry: 32 MB for 1 MB, after 3 s."""
    with pytest.raises(ApiError) as error:
        parse(path, json.dumps(body).encode())
    assert error.value.status == 400
    assert len(error.value.body("completions")) < 20_000
