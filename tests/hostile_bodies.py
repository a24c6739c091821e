"""The worst bodies that we know for each parser and check of the router, at any size.

`HOSTILE` is for the benchmark `hostile`, for tests that look at growth, and for whoever writes the
next check: an input that made a check slow belongs here.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
USER = {"role": "user", "content": "hello"}


class Hostile(NamedTuple):
    """`make(size)`: a body of about so many bytes, for `path`."""

    name: str
    path: str
    make: Callable[[int], bytes]


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _prompt(**fields: Any) -> bytes:
    return _dump({"prompt": "hello", "max_tokens": 2, **fields})


def _chat(**fields: Any) -> bytes:
    return _dump({"messages": [USER], "max_tokens": 2, **fields})


def _fill(part: Callable[[int], str], size: int) -> list[str]:
    """Parts, numbered, that are so long together."""
    parts: list[str] = []
    length = 0
    while length < size:
        parts.append(part(len(parts)))
        length += len(parts[-1]) + 1
    return parts


def ebnf_spaces(size: int) -> bytes:
    return _prompt(ebnf='root ::= "a"{' + " " * min(size, 128_000))


def ebnf_chain(size: int) -> bytes:
    """Each rule needs the next one, the last ends: so many rounds for who goes over all rules."""
    rules = _fill(lambda i: f"r{i} ::= r{i + 1}", min(size, 120_000))
    return _prompt(ebnf="\n".join(["root ::= r0", *rules, f'r{len(rules)} ::= "a"']))


def ebnf_groups(size: int) -> bytes:
    return _prompt(ebnf="root ::= " + ' ("a" | "b"{0,2})?' * (min(size, 120_000) // 20))


def ebnf_quotes(size: int) -> bytes:
    """Strings and classes that are never closed."""
    return _prompt(ebnf="root ::= " + "\"\\' [\\" * (min(size, 120_000) // 12))


def schema_pointers(size: int) -> bytes:
    """References through references, each into the next one."""
    parts = _fill(lambda i: f'"d{i}":{{"anyOf":[{{"$ref":"#/$defs/d{i + 1}/anyOf/0"}}]}}', size)
    last = f'"d{len(parts)}":{{"anyOf":[{{"type":"string"}}]}}'
    defs = ",".join([*parts, last])
    return _prompt(json_schema='{"$ref":"#/$defs/d0","$defs":{' + defs + "}}")


def schema_mutual(size: int) -> bytes:
    """Each refers to a place within the next one, the last to one within the first."""
    parts = _fill(
        lambda i: f'"d{i}":{{"allOf":[{{"anyOf":[{{"$ref":"#/$defs/d{i + 1}/allOf/0"}}]}}]}}',
        min(size, 120_000),
    )
    last = f'"d{len(parts)}":{{"allOf":[{{"anyOf":[{{"$ref":"#/$defs/d0/allOf/0"}}]}}]}}'
    defs = ",".join([*parts, last])
    return _prompt(json_schema='{"allOf":[{"$ref":"#/$defs/d0/allOf/0"}],"$defs":{' + defs + "}}")


def schema_names(size: int) -> bytes:
    """One large part under many names, and a chain that tells last whether it ends."""
    third = min(size, 60_000) // 3
    chain = {f"c{i}": {"$ref": f"#/$defs/c{i + 1}"} for i in range(third // 40)}
    end = {f"c{len(chain)}": {"type": "string"}}
    return _prompt(json_schema=json.dumps({
        "anyOf": [{"$ref": f"#{i}/big"} for i in range(third // 20)],
        "big": {"allOf": [{}] * (third // 4) + [{"$ref": "#/$defs/c0"}]},
        "$defs": chain | end,
    }, separators=(",", ":")))  # fmt: skip


def schema_wide(size: int) -> bytes:
    parts = _fill(lambda i: f'"p{i}":{{"type":"string"}}', size)
    return _prompt(json_schema='{"type":"object","properties":{' + ",".join(parts) + "}}")


def schema_deep(size: int) -> bytes:
    """Nested no deeper than is taken, over and over."""
    one = '{"properties":{"a":' * 25 + "{}" + "}}" * 25
    parts = _fill(lambda i: f'"b{i}":{one}', size)
    return _dump({
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": json.loads('{"properties":{' + ",".join(parts) + "}}")}},
    })  # fmt: skip


def tools_wide(size: int) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "string"}}}}}  # fmt: skip
    return _chat(tools=[tool] * (size // len(_dump(tool)) + 1))


def tools_wrong(size: int) -> bytes:
    """Each has several types that it may be, and is none."""
    return _chat(tools=[{"function": {"name": 1}}] * (size // 24 + 1))


def regex_groups(size: int) -> bytes:
    return _prompt(regex="(a|b)?" * (min(size, 120_000) // 6))


def regex_open(size: int) -> bytes:
    return _prompt(regex="[a-z" + "(" * 60 + "\\" * min(size, 100_000))


def stop_ranges(size: int) -> bytes:
    """What `re` folds character by character: 24 s."""
    wide = "[\x01-\U0010fffe]" * 29
    return _prompt(stop_regex=[f"(?i){wide}{i}" for i in range(32)], suffix="x" * size)


def stop_chain(size: int) -> bytes:
    return _prompt(stop_regex=["a?" * 100 + "b"] * 32, suffix="x" * size)


def stop_counts(size: int) -> bytes:
    return _prompt(stop_regex=[".{0,9}" * 8 + "\x01", "[^\x01]*[^\x01]*\x01"], suffix="x" * size)


def structural_tags(size: int) -> bytes:
    one = {"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}
    return _chat(response_format={
        "type": "structural_tag", "structures": [one] * (size // 60 + 1), "triggers": ["<a>"],
    })  # fmt: skip


def structural_nested(size: int) -> bytes:
    schema = {"type": "json_schema", "json_schema": {"anyOf": [{}, {}]}}
    tag = {"format": {"type": "or", "elements": [schema] * (min(size, 120_000) // 64 + 1)}}
    return _dump({"text": "hello", "sampling_params": {"structural_tag": json.dumps(tag)}})


def json_deep(size: int) -> bytes:
    return b'{"prompt":"hello","max_tokens":2,"x":' + b"[" * size + b"}"


def json_levels(size: int) -> bytes:
    """As deep as is taken, again and again."""
    one = b"[" * 190 + b"]" * 190
    return b'{"prompt":"hello","max_tokens":2,"x":[' + b",".join([one] * (size // 381 + 1)) + b"]}"


def json_wide(size: int) -> bytes:
    return b'{"prompt":"hello","max_tokens":2,"x":[' + b"{}," * (size // 3) + b"{}]}"


def json_names(size: int) -> bytes:
    """Fields that nobody knows."""
    names = ",".join(_fill(lambda i: f'"Tool-Ki{i}":{i}', size))
    return b'{"prompt":"hello","max_tokens":2,' + names.encode() + b"}"


def json_marks(size: int) -> bytes:
    """A name of combining marks in the wrong order: bringing them into order is quadratic."""
    name = "a" + "\u0345\u0301" * (size // 12)
    return _prompt(x={name: 1})


def json_lax(size: int) -> bytes:
    """What orjson does not read, so that all of it is read again."""
    return b'{"prompt":"hello","max_tokens":2,"x":[' + b"NaN," * (size // 4) + b"1]}"


def json_broken(size: int) -> bytes:
    return b'{"prompt":"hello","x":[' + b'"\\u00e9",' * (size // 9) + b"}"


def numbers_long(size: int) -> bytes:
    """Integers of as many digits as Python reads, and one of more."""
    digits = b"7" * 4300
    many = b",".join([digits] * (size // 4301 + 1))
    return b'{"prompt":"hello","max_tokens":2,"seed":' + digits + b',"x":[NaN,' + many + b"]}"


def numbers_many(size: int) -> bytes:
    many = ",".join(["1e308", "-0.1e-300"] * (size // 16))
    return b'{"prompt":"hello","max_tokens":2,"x":[' + many.encode() + b"]}"


def text_escapes(size: int) -> bytes:
    return b'{"prompt":"' + b"\\ud83d\\ude00\\n" * (size // 14) + b'","max_tokens":2}'


def text_wide(size: int) -> bytes:
    text = "\U0001f600\x01" * (size // 5)
    return json.dumps({"messages": [{**USER, "content": text}], "max_tokens": 2},
                      ensure_ascii=False).encode().replace(b"\x01", b"\\n")  # fmt: skip


def messages_many(size: int) -> bytes:
    return _dump({"messages": [USER] * (size // 34 + 1), "max_tokens": 2})


def messages_parts(size: int) -> bytes:
    parts = [{"type": "text", "text": ""}] * (size // 25 + 1)
    return _dump({"messages": [{"role": "user", "content": parts}], "max_tokens": 2})


def messages_wrong(size: int) -> bytes:
    return _dump({"messages": [{"role": "user", "content": [{}]}] * (size // 34 + 1)})


def media(size: int) -> bytes:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa", "fps": "x"}}
    return _chat(messages=[{"role": "user", "content": [part] * (size // len(_dump(part)) + 1)}])


def media_blocks(size: int) -> bytes:
    """Anthropic's: images in results of tools."""
    block = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
    many = [block] * (size // len(_dump(block)) + 1)
    return _dump({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": many}]})


def media_nested(size: int) -> bytes:
    return (
        b'{"text":"a","image_data":' + b"[" * 150 + b"[]," * (size // 3) + b"[]" + b"]" * 150 + b"}"
    )


def responses_items(size: int) -> bytes:
    """All good, but the last."""
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    last = {"role": "user", "content": [{"type": "input_image", "image_url": "file:///a"}]}
    return _dump({"model": "m", "input": [item] * (size // len(_dump(item)) + 1) + [last]})


def bias(size: int) -> bytes:
    return _dump({"text": "hello", "sampling_params": {
        "max_new_tokens": 2, "logit_bias": {str(i): 1 for i in range(size // 9 + 1)}}})  # fmt: skip


def bias_digits(size: int) -> bytes:
    """Ids that are integers of many digits."""
    return _prompt(logit_bias={"0" * 4200 + str(i): 1 for i in range(size // 4210 + 1)})


def template_arguments(size: int) -> bytes:
    return _chat(chat_template_kwargs={f"a{i}": [{}] for i in range(size // 13 + 1)})


def custom(size: int) -> bytes:
    return _prompt(custom_params={f"Tool_{i}": {"ToolKi": 1} for i in range(size // 24 + 1)})


def stops(size: int) -> bytes:
    return _prompt(stop=["a"] * (size // 4))


def prompts(size: int) -> bytes:
    return _dump({"prompt": ["a"] * (size // 4), "max_tokens": 2})


def ids(size: int) -> bytes:
    return _dump({"prompt": [5] * (size // 2), "max_tokens": 2})


def id_rows(size: int) -> bytes:
    return _dump({"input_ids": [[5]] * (size // 4), "sampling_params": {"max_new_tokens": 2}})


def samples(size: int) -> bytes:
    """Many parts; validation drops most of the body."""
    params = {"n": 100, "max_new_tokens": 1, "stop": ["s"] * 30}
    return _dump({"text": "hello", "background": "x" * size, "sampling_params": params})


def samples_large(size: int) -> bytes:
    """Parts that are large, each for two workers."""
    return _dump({"text": "hello", "custom": "x" * size,
                  "sampling_params": {"n": 8, "max_new_tokens": 1}})  # fmt: skip


HOSTILE: tuple[Hostile, ...] = (
    Hostile("ebnf: spaces in a count", COMPLETIONS, ebnf_spaces),
    Hostile("ebnf: chain of rules", COMPLETIONS, ebnf_chain),
    Hostile("ebnf: groups", COMPLETIONS, ebnf_groups),
    Hostile("ebnf: open quotes", COMPLETIONS, ebnf_quotes),
    Hostile("schema: pointers in a chain", COMPLETIONS, schema_pointers),
    Hostile("schema: mutual pointers", COMPLETIONS, schema_mutual),
    Hostile("schema: many names of one part", COMPLETIONS, schema_names),
    Hostile("schema: wide", COMPLETIONS, schema_wide),
    Hostile("schema: deep", CHAT, schema_deep),
    Hostile("tools: many", CHAT, tools_wide),
    Hostile("tools: of wrong types", CHAT, tools_wrong),
    Hostile("regex: optional groups", COMPLETIONS, regex_groups),
    Hostile("regex: never closed", COMPLETIONS, regex_open),
    Hostile("stop_regex: ranges in any case", COMPLETIONS, stop_ranges),
    Hostile("stop_regex: optional chain", COMPLETIONS, stop_chain),
    Hostile("stop_regex: counts that overlap", COMPLETIONS, stop_counts),
    Hostile("structural tags", CHAT, structural_tags),
    Hostile("structural tag: schemas in a format", GENERATE, structural_nested),
    Hostile("JSON: too deep", COMPLETIONS, json_deep),
    Hostile("JSON: deep again and again", COMPLETIONS, json_levels),
    Hostile("JSON: wide", COMPLETIONS, json_wide),
    Hostile("JSON: unknown names", COMPLETIONS, json_names),
    Hostile("JSON: name of combining marks", COMPLETIONS, json_marks),
    Hostile("JSON: NaN", COMPLETIONS, json_lax),
    Hostile("JSON: broken at its end", COMPLETIONS, json_broken),
    Hostile("numbers: of 4,300 digits", COMPLETIONS, numbers_long),
    Hostile("numbers: many", COMPLETIONS, numbers_many),
    Hostile("text: escapes", COMPLETIONS, text_escapes),
    Hostile("text: beyond 16 bits", CHAT, text_wide),
    Hostile("messages: many", CHAT, messages_many),
    Hostile("messages: many parts", CHAT, messages_parts),
    Hostile("messages: of wrong types", CHAT, messages_wrong),
    Hostile("media: parts", CHAT, media),
    Hostile("media: blocks of /v1/messages", MESSAGES, media_blocks),
    Hostile("media: nested lists", GENERATE, media_nested),
    Hostile("/v1/responses: items", RESPONSES, responses_items),
    Hostile("logit_bias: many", GENERATE, bias),
    Hostile("logit_bias: long ids", COMPLETIONS, bias_digits),
    Hostile("chat_template_kwargs", CHAT, template_arguments),
    Hostile("custom_params", COMPLETIONS, custom),
    Hostile("stop: many", COMPLETIONS, stops),
    Hostile("prompts: a batch", COMPLETIONS, prompts),
    Hostile("token ids", COMPLETIONS, ids),
    Hostile("token ids: rows", GENERATE, id_rows),
    Hostile("samples: many", GENERATE, samples),
    Hostile("samples: large", GENERATE, samples_large),
)


def large(size: int) -> bytes:
    """What holds a parsing process for long, and is refused at the end."""
    return b'{"prompt":"hello","x":[' + b'{"a":1},' * (size // 8) + b'1],"n":0}'
