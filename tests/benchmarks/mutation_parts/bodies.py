"""Valid bodies of the three endpoints, and every body that differs from one in a single field."""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

NATIVE, TEXT, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
ENDPOINTS = (NATIVE, TEXT, CHAT)

_NAN, _INFINITY = float("nan"), float("inf")
_DEEP: Any = 1
for _ in range(200):
    _DEEP = [_DEEP]

ANYTHING: list[Any] = [
    None, True, False, 0, 1, -1, 7, 200, -7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400,
    0.5, -0.5, 3.0, 1e30, 1e308, -1e308, _NAN, _INFINITY, -_INFINITY,
    "", "x", "1", "é\u0000\uffff", "\ud800", "x" * 3000, "[", "{", "null",
    [], [[]], [None], [0], [-1], [2**70], [99999999], ["x"], [""], [1, "x"], [1.5], [[1], ["x"]],
    [{}], [_NAN], list(range(300)), {}, {"a": 1}, {"a": {}}, {"0": 1e30}, {"0": _NAN},
    {"-1": 1}, {"99999999": 1}, {"0": "x"}, {"0": None}, {"é": [1]}, _DEEP,
]  # fmt: skip

GRAMMARS: list[Any] = [
    "root ::= root", "root ::=", 'root ::= "a" root | "b"', "::=", "(a{1000}){1000}", "(((", "[[]]",
    "(?=x)a", "(a+)+$", "\\", "[^", "a{99999}", ".*", "(?P<x>a)(?P=x)", "x|", "*",
    '{"$ref": "#"}', '{"type": "strnig"}', '{"type": ["string", 5]}', "true", "[]", "5", '"x"',
    '{"properties": []}', '{"required": [5]}', '{"pattern": "((("}', '{"enum": []}',
    '{"$ref": "http://localhost:1/x"}', '{"minimum": 1e400}', '{"minItems": -1}',
    '{"type": "array", "items": {"$ref": "#"}}', '{"anyOf": []}', '{"maxLength": 99999999999}',
    '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "[" * 600, '{"a":' * 600,
]  # fmt: skip

BIASES: list[Any] = [
    {"5": 200}, {"5": 1e308}, {"5": -_INFINITY}, {"5": True}, {"5.0": 1}, {" 5": 1}, {"5_0": 1},
    {"5": [1]}, {"5": 10**400}, {str(i): -100 for i in range(2000)}, {"7999": 1}, {"8192": 1},
]  # fmt: skip

# What may be long is no mutation but a longer request; and copies fill the machine's memory.
_LONG = frozenset({"max_tokens", "max_completion_tokens", "max_new_tokens", "ignore_eos"})
_COPIES = frozenset({"n", "best_of", "beam_width"})
_GRAMMAR = frozenset({"json_schema", "regex", "ebnf", "structural_tag", "stop_regex"})

_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One body: `field` (dotted) of valid body number `base` of `endpoint` holds `value`."""

    endpoint: str
    base: int
    field: str
    value: Any
    beside: tuple[tuple[str, Any], ...] = ()
    """Fields that every body has; the mutation may be of one of them."""

    @property
    def body(self) -> bytes:
        """JSON text, with NaN and Infinity as Python writes them: SGLang's parser takes those."""
        body: Any = copy.deepcopy(BASES[self.endpoint][self.base]) | dict(self.beside)
        *way, last = _way(self.field)
        place = body
        for step in way:
            place = place[step]
        place[last] = self.value
        return json.dumps(body).encode()

    @property
    def halves(self) -> bool:
        """Whether it means something to one half of a pair of workers that has no other half: a
        grammar takes only the first token that a prefill worker chose, and whoever names a host
        waits for the worker there."""
        text = json.dumps(BASES[self.endpoint][self.base])
        name = self.field.rsplit(".", 1)[-1]
        grammar = any(f'"{each}"' in text for each in _GRAMMAR)
        return not grammar and name not in _GRAMMAR and name != "bootstrap_host"

    def record(self) -> dict[str, Any]:
        """Of JSON's own types; a value that is long is cut."""
        value = self.value if len(repr(self.value)) < 300 else repr(self.value)[:300]
        return {"endpoint": self.endpoint, "base": self.base, "field": self.field, "value": value}


def _native(**more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": 3, "temperature": 0.8} | more.pop("sampling", {})
    return {"text": "one two", "sampling_params": sampling} | more


def _openai(**more: Any) -> dict[str, Any]:
    return {"model": "embedded", "max_tokens": 3, "temperature": 0.8} | more


_MESSAGES = {"messages": [{"role": "user", "content": "one two"}]}
_LOGPROBS = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
BASES: dict[str, list[dict[str, Any]]] = {
    NATIVE: [
        _native(),
        _native(stream=True),
        _native(**_LOGPROBS),
        _native(text=["one", "two"]),
        _native(sampling={"regex": "[ab]{1,9}"}),
        _native(sampling={"frequency_penalty": 0.5, "min_new_tokens": 2}, stream=True, **_LOGPROBS),
    ],
    TEXT: [
        _openai(prompt="one two"),
        _openai(prompt="one two", stream=True),
        _openai(prompt="one two", logprobs=2, echo=True),
        _openai(prompt=["one", "two"], n=2),
        _openai(prompt=[400, 500], stream=True, logprobs=1),
    ],
    CHAT: [
        _openai(**_MESSAGES),
        _openai(**_MESSAGES, stream=True),
        _openai(**_MESSAGES, logprobs=True, top_logprobs=2),
        _openai(**_MESSAGES, tools=[_TOOL], tool_choice="auto"),
        _openai(**_MESSAGES, response_format=_SCHEMA, stream=True),
        _openai(messages=[{"role": "user", "content": [{"type": "text", "text": "one"}]}], n=2),
    ],
}

_NESTED: dict[str, list[tuple[int, str]]] = {
    NATIVE: [],
    TEXT: [(1, "stream_options"), (0, "prompt"), (3, "prompt.0"), (4, "prompt.0")],
    CHAT: [
        (0, "messages.0"), (0, "messages.0.role"), (0, "messages.0.content"),
        (5, "messages.0.content.0"), (5, "messages.0.content.0.type"),
        (5, "messages.0.content.0.text"), (3, "tools.0"), (3, "tools.0.type"),
        (3, "tools.0.function"), (3, "tools.0.function.name"), (3, "tools.0.function.parameters"),
        (3, "tools.0.function.strict"), (3, "tools.0.function.parameters.properties"),
        (4, "response_format.type"), (4, "response_format.json_schema"),
        (4, "response_format.json_schema.schema"), (4, "response_format.json_schema.name"),
        (1, "stream_options"),
    ],
}  # fmt: skip


def _way(field: str) -> Path:
    return tuple(int(step) if step.isdecimal() else step for step in field.split("."))


def values(field: str) -> list[Any]:
    """What `field` is set to: anything, and for some fields more."""
    name = field.rsplit(".", 1)[-1]
    if name in _LONG:
        whole = [value for value in ANYTHING if type(value) is int and value > 20]
        return [v for v in ANYTHING if v is not None and v is not True and v not in whole]
    if name in _COPIES:
        return [v for v in ANYTHING if type(v) not in (int, float) or not 20 < v < _INFINITY]
    if name in _GRAMMAR:
        return ANYTHING + GRAMMARS
    if name in ("schema", "parameters"):
        return ANYTHING + [parsed for text in GRAMMARS if (parsed := _parsed(text)) is not None]
    return ANYTHING + BIASES if name == "logit_bias" else ANYTHING


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _fields(names: dict[str, list[str]]) -> Iterator[tuple[str, Sequence[int], str]]:
    """(endpoint, valid bodies, field) of every field."""
    kinds = {NATIVE: names["generate"], TEXT: names["completions"], CHAT: names["chat"]}
    for endpoint, fields in kinds.items():
        every = range(len(BASES[endpoint]))
        for field in fields:
            yield endpoint, every, field
        for base, field in _NESTED[endpoint]:
            yield endpoint, (base,), field
    for field in names["sampling"]:
        yield NATIVE, range(len(BASES[NATIVE])), f"sampling_params.{field}"


def mutations(names: dict[str, list[str]], seed: int = 0) -> list[Mutation]:
    """Every value of every field, each in one of the field's valid bodies.

    Each field has its values in an order of its own; all fields' first values come first, then all
    second ones, so that the beginning has all fields too. The same for the same seed.
    """
    columns: list[list[Mutation]] = []
    for endpoint, bases, field in _fields(names):
        rng = random.Random(f"{seed} {endpoint} {field}")
        chosen = values(field)[:]
        rng.shuffle(chosen)
        columns.append([Mutation(endpoint, rng.choice(bases), field, v) for v in chosen])
    rows = max(map(len, columns))
    return [column[row] for row in range(rows) for column in columns if row < len(column)]
