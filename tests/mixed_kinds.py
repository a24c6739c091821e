"""Streams of many kinds, and what a client puts together of each: to compare two settings.

All are greedy, so that an answer is a function of its request. `ask` checks on the way what no
stream may do: go back, tell a role twice, change its id. Left out of an answer is what may differ
from one run to the next: times, ids, how much of a prompt was cached, and how a text was cut.
"""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import aiohttp

from toolkit.embedded import load_prompts

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
ANIMAL = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": ANIMAL}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "animal", "schema": ANIMAL}}
USAGE = {"stream_options": {"include_usage": True}}
OFTEN = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BOTH: list[dict[str, Any]] = [
    {},
    USAGE,
    OFTEN,
    {"max_tokens": 1},
    {"max_tokens": 1, **USAGE},
    {"max_tokens": 2},
    {"n": 2},
    {"n": 3, "max_tokens": 1, **USAGE},
    {"stop": [" the", "e", "\n"]},
    {"stop": ["e"], "no_stop_trim": True},
    {"stop": [" "]},
    {"stop": "zq"},
    {"stop_token_ids": list(range(260, 700))},
    {"stop_regex": "[aeiou]"},
    {"frequency_penalty": 1.2, "presence_penalty": 0.4},
    {"repetition_penalty": 1.3},
    {"min_tokens": 5},
    {"ignore_eos": True},
    {"regex": "(ab|cd|ef){1,9}"},
    {"regex": "a"},
    {"ebnf": 'root ::= "a" | "b" [0-9]+'},
    {"logit_bias": {"2": 100}},
    {"logit_bias": {"300": 100}},
    {"skip_special_tokens": False},
    {"seed": 7},
    {"user": "somebody"},
]
"""For both of OpenAI's endpoints."""
TEXTS: list[dict[str, Any]] = [
    {"echo": True},
    {"echo": True, "max_tokens": 1},
    {"logprobs": 2},
    {"echo": True, "logprobs": 1},
    {"return_token_ids": True},
    {"json_schema": json.dumps(ANIMAL), "max_tokens": 40},
    {"suffix": "."},
]
CHATS: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 2},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "none"},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
    {"response_format": SCHEMA, "max_tokens": 40},
    {"response_format": {"type": "json_object"}, "max_tokens": 30},
    {"separate_reasoning": False},
]
NATIVES: list[dict[str, Any]] = [
    {},
    {"sampling": {"max_new_tokens": 1}},
    {"sampling": {"stop": ["e"]}},
    {"sampling": {"stop": [" "], "no_stop_trim": True}},
    {"sampling": {"stop_regex": "[aeiou]"}},
    {"sampling": {"stream_interval": 3}},
    {"sampling": {"stream_interval": 3, "max_new_tokens": 1}},
    {"sampling": {"stop_token_ids": list(range(260, 700))}},
    {"sampling": {"n": 2}},
    {"sampling": {"frequency_penalty": 0.8, "min_new_tokens": 6}},
    {"sampling": {"json_schema": json.dumps(ANIMAL), "max_new_tokens": 40}},
    {"sampling": {"regex": "[a-c]{2,6}"}},
    {"sampling": {"sampling_seed": 3}},
    {"return_logprob": True, "top_logprobs_num": 2},
    {"return_logprob": True, "logprob_start_len": 0},
    {"return_logprob": True, "token_ids_logprob": [300, 301]},
    {"return_prompt_token_ids": True},
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": "word " * 20000}),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 20000}]}),
    (NATIVE, {"text": "word " * 20000}),
    (TEXT, {"prompt": "a", "max_tokens": 10**6}),
]
"""Refused by a worker, not by the router."""


def kinds() -> list[tuple[str, dict[str, Any]]]:
    """One of each, without a prompt."""
    found = [(TEXT, more) for more in BOTH + TEXTS] + [(CHAT, more) for more in BOTH + CHATS]
    return found + [(NATIVE, more) for more in NATIVES]


def requests(count: int, tokens: int = 12) -> list[tuple[str, dict[str, Any]]]:
    """So many of all kinds, each with another prompt than the one before."""
    texts = [prompt.text for prompt in load_prompts()] + ["Ä€ 漢字 🙂 und", "😀😀", "été à l'"]
    prompts = itertools.cycle(texts)
    some: Iterator[tuple[str, dict[str, Any]]] = itertools.cycle(kinds())
    made = [_request(*next(some), next(prompts), tokens) for _ in range(count)]
    return made + [(path, {"model": "embedded", "stream": True, **body}) for path, body in WRONG]


def _request(path: str, more: dict[str, Any], text: str, tokens: int) -> tuple[str, dict[str, Any]]:
    if path == NATIVE:
        rest = {key: value for key, value in more.items() if key != "sampling"}
        sampling = {"temperature": 0, "max_new_tokens": tokens, **more.get("sampling", {})}
        return path, {"text": text, "sampling_params": sampling, "stream": True, **rest}
    prompt: dict[str, Any] = {"prompt": text}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": text}]}
    own = {"model": "embedded", "temperature": 0, "max_tokens": tokens, "stream": True}
    return path, {**own, **prompt, **more}


async def ask(
    session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]
) -> dict[Any, Any]:
    """What a client puts together of the answer."""
    async with session.post(url + path, json=body) as response:
        raw = await response.read()
        if response.status != 200:
            return {"status": response.status, "said": json.loads(raw)}
    parts = [part for part in raw.split(b"\n\n") if part]
    assert parts[-1] == b"data: [DONE]", (path, body, parts[-1:])
    assert all(part.startswith(b"data: ") for part in parts), (path, body, parts)
    events = [json.loads(part[6:]) for part in parts[:-1]]
    if any("error" in event for event in events):
        return {"status": 200, "said": events[-1]}
    return _native(events) if path == NATIVE else _openai(events)


def _native(events: list[dict[str, Any]]) -> dict[int, Any]:
    choices: dict[int, Any] = {}
    for event in events:
        meta, index = event["meta_info"], event.get("index", 0)
        before = choices.get(index, {"text": "", "ids": []})
        said = {"text": event["text"], "ids": event["output_ids"]}
        assert said["ids"][: len(before["ids"])] == before["ids"], "it went back"
        assert said != before or meta["finish_reason"], "it came twice"
        for name in ("finish_reason", "completion_tokens", "prompt_tokens"):
            said[name] = meta[name]
        said |= {name: value for name, value in meta.items() if "logprobs" in name}
        said["prompt_token_ids"] = event.get("prompt_token_ids")
        choices[index] = said
    return choices


def _openai(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({event["id"] for event in events}) == 1
    usage = [event["usage"] for event in events if event.get("usage")]
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            _add(choices.setdefault(choice["index"], {}), choice)
    last = {key: value for key, value in (usage or [{}])[-1].items() if "details" not in key}
    return {"choices": choices, "usage": last}


def _add(said: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta") or {}
    if delta.get("role"):
        assert "role" not in said, "its role came twice"
        said["role"] = delta["role"]
    texts = {
        "text": choice.get("text"),
        **{k: delta.get(k) for k in ("content", "reasoning_content")},
    }
    for name, text in texts.items():
        said[name] = said.get(name, "") + (text or "")
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        said["called"] = said.get("called", "") + (function.get("name") or "")
        said["arguments"] = said.get("arguments", "") + (function.get("arguments") or "")
    for name in ("token_ids", "prompt_token_ids"):
        said[name] = said.get(name, []) + (choice.get(name) or [])
    for name, values in (choice.get("logprobs") or {}).items():
        said[f"logprobs.{name}"] = said.get(f"logprobs.{name}", []) + (values or [])
    for name in ("finish_reason", "matched_stop"):
        said[name] = choice.get(name) if choice.get(name) is not None else said.get(name)


def same(one: Any, other: Any) -> bool:
    """Whether two answers are; log probabilities may differ by what batches do to them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=0.02, abs_tol=0.02)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
