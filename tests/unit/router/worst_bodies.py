"""The worst body of a given size for each part of validation and splitting that reads one.

A new validation rule, or a new reader of bodies, brings a row of its own: `test_linear_checks`
fails without one.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING

Body = dict[str, Any] | bytes
Make = Callable[[int], Body]


class Worst(NamedTuple):
    """`make(size)`: a body of about so many bytes. `reads`: the function that it is meant for, as
    `name_of` names it."""

    path: str
    reads: str
    make: Make


def name_of(function: Any) -> str:
    module = function.__module__.removeprefix("toolkit.router.").removeprefix("validate.")
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")


def rules() -> set[str]:
    """Every function by which validation judges a value."""
    fields = [field for table in (*ENDPOINTS.values(), SAMPLING) for field in table.values()]
    return {name_of(field.rule.wrong) for field in fields if field.rule is not None}


def raw(body: Body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def times(piece: str, size: int) -> str:
    return piece * (size // len(piece))


def _text(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi"} | fields


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields


def _messages(**fields: Any) -> dict[str, Any]:
    return _chat(max_tokens=4) | fields


def _native(**sampling: Any) -> dict[str, Any]:
    return {"text": "hi", "sampling_params": sampling}


def _numbered(piece: str, size: int) -> list[str]:
    """`piece` with {0} and {1} for a number and the next, of about `size` characters together."""
    count = size // (len(piece) + 8)
    return [piece.format(number, number + 1) for number in range(count)]


def _chain(size: int) -> str:
    return "\n".join(["root ::= a0", *_numbered("a{0} ::= a{1}", size), "b ::= c"])


def _backward(size: int) -> str:
    return "\n".join(["root ::= a1", *reversed(_numbered("a{0} ::= a{1} a{1}", size))])


def _long_name(size: int) -> str:
    return f"{times('a', size // 2)} ::= {times('()', size // 2)}"


def _pointers(size: int) -> dict[str, Any]:
    """References into each other, each to a place within the next, and the last to one that is
    good: which of them lead anywhere is known from the end only."""
    count = min(size // 80, 2400)
    defs = {
        f"a{at}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/a{at + 1}/allOf/0"}]}]}
        for at in range(count)
    }
    return {
        "allOf": [{"$ref": "#/$defs/a0/allOf/0"}],
        "$defs": defs | {f"a{count}": {"allOf": [{"type": "null"}]}},
    }


def _refs(size: int) -> dict[str, Any]:
    """A chain of references, the first of which hangs on the last."""
    count = min(size // 40, 3000)
    defs = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": defs | {f"a{count}": {"type": "null"}}}


def _nest(size: int) -> dict[str, Any]:
    """One deep schema, and references to its innermost part in as many spellings."""
    schema: dict[str, Any] = {"anyOf": [{"$ref": "#/allOf/0"}]}
    for _ in range(20):
        schema = {"allOf": [schema]}
    schema["items"] = [
        {"$ref": "#" + "".join(f"/allOf/{'00' if at >> bit & 1 else '0'}" for bit in range(20))}
        for at in range(min(size // 200, 2400))
    ]
    return schema


def _long_ref(size: int) -> dict[str, Any]:
    return {"$ref": "#/" + times("a~1/", size), "items": {"$ref": f"#/anyOf/{times('9', size)}"}}


def _wide(size: int) -> dict[str, Any]:
    return {"enum": [0] * (size // 3)}


def _deep(size: int) -> bytes:
    return b'{"prompt": ' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"


def _accents(size: int) -> dict[str, Any]:
    return {"a" + "\u0327\u0301" * (size // 12): 1, "x": {"b" + "\u0327\u0301" * (size // 12): 1}}


def _objects(size: int) -> list[dict[str, Any]]:
    return [{"type": 1}] * (size // 12)


def _images(size: int) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    return [part] * (size // 60)


def _schema_text(make: Callable[[int], dict[str, Any]]) -> Make:
    return lambda size: _native(json_schema=json.dumps(make(size)))


def _format(make: Callable[[int], dict[str, Any]]) -> Make:
    return lambda size: _chat(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": make(size)}}
    )


TEXT, CHAT, NATIVE = "/v1/completions", "/v1/chat/completions", "/generate"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ROWS: dict[str, Worst] = {
    # Grammars
    "open count": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf='"a"{' + " " * n)),
    "open counts": Worst(NATIVE, "guided._ebnf", lambda n: _native(
        ebnf="a ::= b" + times("{ 1", n))),
    "open brackets": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf="a ::= " + "[" * n)),
    "open quote": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf="a ::= " + times('"\\', n))),
    "chain of rules": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf=_chain(n))),
    "chain backwards": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf=_backward(n))),
    "rule by one name": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf=_long_name(n))),
    "one rule again": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf=times("a::=a\n", n))),
    "alternatives": Worst(NATIVE, "guided._ebnf", lambda n: _native(
        ebnf="a ::= a" + "|a" * (n // 2))),
    "groups": Worst(NATIVE, "guided._ebnf", lambda n: _native(ebnf="a ::= " + times("(a|b)?", n))),
    "regex": Worst(NATIVE, "guided._regex", lambda n: _native(regex=times("(a*)*", n))),
    # Schemas
    "pointers": Worst(NATIVE, "guided._json_schema", _schema_text(_pointers)),
    "chain of references": Worst(NATIVE, "guided._json_schema", _schema_text(_refs)),
    "references to levels": Worst(NATIVE, "guided._json_schema", _schema_text(_nest)),
    "long references": Worst(NATIVE, "guided._json_schema", _schema_text(_long_ref)),
    "wide schema": Worst(NATIVE, "guided._json_schema", _schema_text(_wide)),
    "schema of a format": Worst(CHAT, "content._response_format", _format(_pointers)),
    "wide schema of a format": Worst(CHAT, "content._response_format", _format(_wide)),
    "schema of a text": Worst(RESPONSES, "content._text_format", lambda n: {
        "input": "hi", "text": {"format": {"schema": _pointers(n)}}}),
    "tag": Worst(NATIVE, "guided._structural_tag", lambda n: _native(structural_tag=json.dumps(
        {"format": {"tags": [{"json_schema": make(n // 2)} for make in (_refs, _pointers)]}}))),
    "legacy tag": Worst(NATIVE, "guided._structural_tag", lambda n: _native(
        structural_tag=json.dumps({"triggers": ["a"], "structures": [
            {"begin": "a", "end": "b", "schema": {"$ref": "#"}}] * (n // 60)}))),
    "tools": Worst(CHAT, "content._tools", lambda n: _chat(tools=[
        {"type": "function", "function": {"name": "f", "parameters": _refs(600)}}] * (n // 600))),
    "wide tool": Worst(CHAT, "content._tools", lambda n: _chat(tools=[
        {"type": "function", "function": {"name": "f", "parameters": _wide(n)}}])),
    "other tools": Worst(MESSAGES, "content._tools", lambda n: _messages(
        tools=[{"input_schema": _refs(600)}] * (n // 600))),
    # Patterns
    "wide ranges": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(
        stop_regex=["(?i)" + "[\\x00-\\uffff]" * 16] * min(n // 300, 32))),
    "ranges to the end": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(
        stop_regex=["(?i)[" + "\\x00-\\U0010ffff" * 16 + "]"] * min(n // 300, 32))),
    "words": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(stop_regex=r"\w{1,15}x")),
    "many words": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(
        stop_regex=[r"(?i)[\w\x80-\uffff]"] * min(n // 300, 32))),
    "counts": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(stop_regex="(.{99}){10}")),
    "too many patterns": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(
        stop_regex=["(" * 100 + ")" * 100] * (n // 204))),
    "long pattern": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(stop_regex="(" * n)),
    "deep patterns": Worst(NATIVE, "stop_regex._stop_regex", lambda n: _native(
        stop_regex=["(" * 120 + ")" * 120] * min(n // 244, 32))),
    # Lists and maps
    "biases": Worst(TEXT, "rules._bias", lambda n: _text(
        logit_bias={str(at): 1 for at in range(n // 10)})),
    "bias by a long key": Worst(TEXT, "rules._bias", lambda n: _text(logit_bias={"1" * n: 1})),
    "biases by long keys": Worst(NATIVE, "rules._bias", lambda n: _native(
        logit_bias={"1".zfill(4200) + str(at): 1 for at in range(n // 4300)})),
    "wrong biases": Worst(TEXT, "check._validate", lambda n: _text(
        logit_bias={str(at): "x" for at in range(n // 14)})),
    "stop ids": Worst(TEXT, "rules._stop_ids", lambda n: _text(stop_token_ids=[1] * (n // 3))),
    "stops": Worst(TEXT, "rules._stop", lambda n: _text(stop=["a"] * (n // 5))),
    "long stop": Worst(TEXT, "rules._stop", lambda n: _text(stop="a" * n)),
    "ids": Worst(TEXT, "rules._ids", lambda n: {"prompt": [*[1] * (n // 3), 10**6]}),
    "prompts": Worst(TEXT, "content._prompt", lambda n: {"prompt": [[1]] * min(n // 5, 10**6)}),
    "no prompts": Worst(TEXT, "content._prompt", lambda n: {"prompt": [""] * (n // 4)}),
    "texts": Worst(NATIVE, "content._not_empty", lambda n: {"text": ["a"] * (n // 5)}),
    "logprob ids": Worst(NATIVE, "rules._logprob_ids", lambda n: {
        "text": "a", "token_ids_logprob": [[1]] * (n // 5)}),
    "starts": Worst(NATIVE, "rules.integer.wrong", lambda n: {
        "text": "a", "logprob_start_len": [1] * (n // 3)}),
    "tops": Worst(NATIVE, "rules.of_each.wrong", lambda n: {
        "text": "a", "top_logprobs_num": [1] * (n // 3)}),
    "names": Worst(NATIVE, "rules.of_each.wrong", lambda n: {
        "text": "a", "extra_key": ["a"] * (n // 5)}),
    "long name": Worst(TEXT, "rules.text.wrong", lambda n: _text(user="é" * (n // 6))),
    "long model": Worst(TEXT, "content._model", lambda n: _text(model=":" * n)),
    "long base model": Worst(RESPONSES, "content._no_adapter", lambda n: {
        "input": "a", "model": ":" * (n // 2) + " " * (n // 2)}),
    "samplings": Worst(NATIVE, "content._nothing", lambda n: {
        "text": ["a"] * (n // 40), "sampling_params": [{"temperature": 1}] * (n // 40)}),
    "odd number": Worst(NATIVE, "rules.number.wrong", lambda n: _native(
        temperature=[[{"a": 1}] * (n // 10)])),
    "long integer": Worst(NATIVE, "rules.integer.wrong", lambda n: (
        b'{"text": "a", "sampling_params": {"n": ' + b"9" * n + b"}}")),
    "integers": Worst(NATIVE, "splitting._read", lambda n: (
        b'{"text": "a", "x": [NaN' + (b"," + b"9" * 4200) * (n // 4201) + b"]}")),
    "odd flag": Worst(NATIVE, "rules._flag", lambda n: _native(ignore_eos={"a": "b" * n})),
    "custom": Worst(NATIVE, "sampling._custom", lambda n: _native(
        custom_params={f"tool{at}": [{"toolkit": 1}] for at in range(n // 32)})),
    "odd objects": Worst(NATIVE, "rules.of_each.wrong", lambda n: {
        "text": "a", "watermark": [{"a": 1}] * (n // 10)}),
    "odd object": Worst(NATIVE, "rules._object", lambda n: _native(
        watermark=[{"a": 1}] * (n // 10))),
    # Messages, parts, media, templates
    "messages": Worst(CHAT, "content._messages", lambda n: _chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}] * (n // 70))),
    "images": Worst(CHAT, "content._messages", lambda n: _chat(
        messages=[{"role": "user", "content": _images(n)}])),
    "long source": Worst(CHAT, "content._messages", lambda n: _chat(messages=[{"role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "file:" + "a" * n}}]}])),
    "wrong parts": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": "user", "content": _objects(n)}])),
    "wrong parts of many": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": "user", "content": [1] * 200}] * (n // 640))),
    "wrong calls": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": "assistant", "content": "a", "tool_calls": [1] * (n // 3)}])),
    "large wrong part": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": "user", "content": [{"type": 1, "x": {"y": [1] * (n // 3)}}]}])),
    "nested wrong part": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": 1, "content": [[[[[["a" * n]]]]]]}])),
    "wrong role": Worst(CHAT, "check._validate", lambda n: _chat(
        messages=[{"role": "R" * n, "content": "a"}])),
    "template": Worst(CHAT, "content._template", lambda n: _chat(
        chat_template_kwargs={f"a{at}": 1 for at in range(n // 12)})),
    "reasoning": Worst(CHAT, "content._reasoning", lambda n: _chat(reasoning={"effort": "1" * n})),
    "media": Worst(NATIVE, "media._sources", lambda n: {
        "text": "a", "image_data": [["data:,"] * (n // 20)] * 2}),
    "blocks": Worst(MESSAGES, "media._rule.wrong", lambda n: _messages(messages=[{"role": "user",
        "content": [{"type": "tool_result", "content": [{"type": "image", "source": "data:,"}]}] *
        (n // 90)}])),
    "items": Worst(RESPONSES, "content._input", lambda n: {
        "input": [{"content": [{"type": "input_image", "image_url": "data:,"}]}] * (n // 70)}),
    "kept": Worst(RESPONSES, "answers._not_kept", lambda n: {"input": "a" * n, "store": True}),
    # JSON, and the whole body
    "deep": Worst(TEXT, "splitting.load", _deep),
    "deep and wide": Worst(TEXT, "splitting.load", lambda n: {
        "prompt": "a", "x": [json.loads("[" * 90 + "]" * 90)] * (n // 182)}),
    "wide": Worst(TEXT, "private.without_ours", lambda n: _text(x=[{"a": 1}] * (n // 11))),
    "fields": Worst(TEXT, "check.check", lambda n: _text(
        n=1024, **{f"f{at}": 1 for at in range(n // 12)})),
    "few fields": Worst(TEXT, "splitting._one_body", lambda n: {
        "prompt": ["a"] * min(n // 64, 1024), **{f"f{at}": 1 for at in range(500)}}),
    "accents": Worst(TEXT, "private.is_ours", lambda n: _text(**_accents(n))),
    "no letters": Worst(TEXT, "private.is_ours", lambda n: _text(**{"\u00b7" * (n // 6): 1})),
    "not a number": Worst(TEXT, "splitting._check_text", lambda n: (
        b'{"prompt": "a", "x": [NaN' + b',"\\ud83d\\ude00"' * (n // 15) + b"]}")),
    "long blocks": Worst(CHAT, "request_view.view_of", lambda n: _chat(messages=[
        {"role": "user", "content": [{"type": "text", "text": "a" * n}]}])),
    "no object": Worst(TEXT, "splitting._type_error", lambda n: b"[" + b"1," * (n // 2) + b"1]"),
}  # fmt: skip
