"""Fuzzed bodies for `abuse`: valid ones of the three endpoints, with some of their parts changed.

Changes are made in the tree (types, sizes, nesting, missing and unknown keys), in the text (what no
JSON writer would write: duplicate keys, `1e999`, `[` a hundred thousand deep) and in the bytes
(encodings, truncation, flipped bits).
"""

import copy
import json
import math
import random
from typing import Any

MIB = 2**20
SHARED: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "stop": ["\n", "END"],
    "stop_token_ids": [1, 2], "n": 2, "seed": 7, "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"17": 1.5}, "regex": "a+", "ebnf": 'root ::= "a"',
    "min_tokens": 1, "ignore_eos": True, "skip_special_tokens": False, "no_stop_trim": True,
    "spaces_between_special_tokens": True, "custom_params": {"a": [1]},
}  # fmt: skip
OPENAI: dict[str, Any] = {
    **SHARED, "model": "default", "stream": True, "stream_options": {"include_usage": True},
    "user": "somebody", "rid": "mine", "return_hidden_states": False, "max_tokens": 8,
    "session_params": {"id": "s"}, "lora_path": None, "bootstrap_host": "127.0.0.1",
    "bootstrap_port": 1, "bootstrap_room": 7, "routed_dp_rank": 0, "background": False,
    "custom_logit_processor": None, "best_of": 2, "response_format": {"type": "json_object"},
    "extra_key": "k", "cache_salt": "s", "logprobs": 2,
}  # fmt: skip
CHAT: dict[str, Any] = {
    **OPENAI,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function",
         "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "user", "content": "hello"},
    ],
    "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2, "reasoning_effort": "low",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto", "parallel_tool_calls": True, "separate_reasoning": True,
    "chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": False,
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {
    **OPENAI, "prompt": ["hello", "there"], "echo": True, "suffix": "x",
}  # fmt: skip
_PARAMS = {name: value for name, value in SHARED.items() if name not in ("seed", "min_tokens")}
GENERATE: dict[str, Any] = {
    "text": ["hello", "there"], "input_ids": None, "input_embeds": None, "stream": True,
    "rid": ["a", "b"], "sampling_params": [{**_PARAMS, "max_new_tokens": 8}] * 2,
    "return_logprob": [True, False], "logprob_start_len": [0, -1], "top_logprobs_num": [1, 0],
    "token_ids_logprob": [[1], [2]], "return_text_in_logprobs": True, "image_data": None,
    "session_params": None, "lora_path": None, "log_metrics": True, "bootstrap_room": [1, 2],
    "bootstrap_host": None, "return_hidden_states": False, "custom_logit_processor": None,
    "background": False, "routed_dp_rank": None, "priority": 1, "extra_key": None,
}  # fmt: skip
VALID = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS, "/generate": GENERATE}
SELDOM = {
    "session_params", "best_of", "bootstrap_host", "bootstrap_port", "bootstrap_room", "background",
    "routed_dp_rank", "custom_logit_processor", "input_embeds", "ebnf", "response_format", "echo",
    "return_hidden_states", "continue_final_message", "suffix", "lora_path", "cache_salt",
}  # fmt: skip
"""What a router may refuse for the asking: in one body of fifty, as nothing else is then seen."""
KEPT = {"messages", "prompt", "text", "stream", "sampling_params"}
"""The others are left out of most bodies: a request with all fields is refused for the first."""

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 24, 128, 3.5, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf,
    -math.inf, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400,
    "", " ", "a", "\0", "\ud800", "x\udfff", "\ud83d\ude00", "e\u0301" * 40, "\u202e", "null",
    "NaN", "1", "-1", "true", "../../etc", "%s%n", '"', "\\", "\r\nX-Y: z", "{{7*7}}", "a" * 9000,
    [], [[]], [[[]]], {}, {"": ""}, {"\ud800": 1}, [None], ["x"], [1, "x"], [[1], ["x"]], [{}],
    {"n": []}, [{"n": []}], [{"n": 1}, {"n": 2}], {"a": {"b": {"c": [{}]}}}, [0] * 500,
    ["a"] * 100, [2**70], [-1], [True], {"type": "x"}, {"content": []}, {"toolkit_resume": ["x"]},
    {"custom_params": {"toolkit_resume": [1, 2]}}, [[1, 2], [3]], [[0.1, 0.2]], [[[0.1]]],
)  # fmt: skip
RAW = (
    "1e999", "-1e999", "-", "01", "1.", ".5", "+1", "0x10", "1_0", "Infinity", "-NaN", "undefined",
    "'a'", '"\\x41"', '"\\u12"', '"\\ud800\\u0041"', '"\t"', '"\n"', "[1,]", "[,]", "{,}", '{"a"}',
    '{"a":1,"a":[2]}', '{"n":1,"n":2}', "/* x */1", "1//x\n", "9" * 5000, "-" + "9" * 400,
    "0." + "3" * 3000, "1e-999999", "[" * 990 + "]" * 990, '{"a":' * 990 + "1" + "}" * 990,
    "[" * 5000 + "]" * 5000, "[" * 100_000, '{"a":' * 20_000, "[" * 200 + "]" * 200,
)  # fmt: skip
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "utf-7", "cp037")


class Bodies:
    """Bodies from one seed: `next()` gives the path and the bytes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._raw: list[str] = []

    def next(self) -> tuple[str, bytes]:
        path = self._random.choice(list(VALID))
        return path, self._bytes(self._text(self._tree(path)))

    def _tree(self, path: str) -> Any:
        choice = self._random
        body = copy.deepcopy(VALID[path])
        share = choice.choice([0.0, 0.1, 0.3, 1.0])
        for name in list(body):
            if choice.random() > (0.02 if name in SELDOM else share) and name not in KEPT:
                del body[name]
        if choice.random() < 0.7:
            _shrink(body)
        for _ in range(choice.choice([0, 1, 1, 1, 2, 3])):
            changed = self._change(body)
            body = changed if changed is not None else body
        return body

    def _change(self, body: Any) -> Any:
        """Change one part of the tree in place; a new tree where it is all that changes."""
        choice = self._random
        spots = list(_spots(body))
        if not spots or choice.random() < 0.01:
            return self._hostile()
        holder, key = choice.choice(spots)
        kind = choice.randrange(10)
        if kind < 5:
            holder[key] = self._hostile()
        elif kind == 5:
            del holder[key]
        elif kind == 6:
            holder[key] = [holder[key]] * choice.choice([1, 2, 100])
        elif kind == 7:
            holder[key] = {choice.choice(["a", "type", "", "n"]): holder[key]}
        elif kind == 8 and isinstance(holder, dict):
            holder[str(self._hostile())[:50]] = self._hostile()
            names = list(SHARED) + list(CHAT) + list(GENERATE)
            holder[choice.choice(names)] = self._hostile()
        else:
            holder[key] = self._big(holder[key])
        return None

    def _hostile(self) -> Any:
        if self._random.random() < 0.2:
            self._raw.append(self._random.choice(RAW))
            return f"@raw{len(self._raw) - 1}@"
        return copy.deepcopy(self._random.choice(HOSTILE))

    def _big(self, value: Any) -> Any:
        """Large: mostly some KiB, rarely MiB, since 10,000 bodies go through two cores."""
        size = self._random.choices([2_000, 60_000, MIB, 4 * MIB], [80, 18, 1.8, 0.2])[0]
        if isinstance(value, list):
            return (value or [1]) * min(2_000, max(1, size // 100))
        if isinstance(value, dict):
            return {f"k{i}": i for i in range(size // 20)}
        return ("word " * (size // 5 + 1))[:size]

    def _text(self, tree: Any) -> str:
        text = json.dumps(tree)
        for number, raw in enumerate(self._raw):
            text = text.replace(f'"@raw{number}@"', raw)
        self._raw.clear()
        return text

    def _bytes(self, text: str) -> bytes:
        choice = self._random
        raw = text.encode("utf-8", "surrogatepass")
        kind = choice.randrange(40)
        if kind == 0:
            return raw[: choice.randrange(len(raw) + 1)]
        if kind == 1:
            changed = bytearray(raw)
            for _ in range(choice.choice([1, 1, 10])):
                changed[choice.randrange(len(changed))] = choice.randrange(256)
            return bytes(changed)
        if kind == 2:
            return text.encode(choice.choice(ENCODINGS), "replace")
        if kind == 3:
            return choice.choice([b"", b"\0", b"null", b"[]", b"\xff\xfe", b"a=b&c=d", raw * 2])
        if kind == 4:
            at = choice.randrange(len(raw) + 1)
            return (
                raw[:at] + choice.choice([b"\xff", b"\0", b"\xed\xa0\x80", b",", b"}"]) + raw[at:]
            )
        return raw


def _shrink(body: dict[str, Any]) -> None:
    """To one prompt of plain text, so that what was changed elsewhere is reached."""
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": "hello"}]
    for name in ("prompt", "text"):
        if name in body:
            body[name] = "hello"
    for name, value in body.items() if "sampling_params" in body else ():
        if isinstance(value, list):
            body[name] = value[0]
    params = body.get("sampling_params")
    if isinstance(params, dict):  # all at once exclude each other
        params.pop("ebnf")


def _spots(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in the tree, as (container, key)."""
    found: list[tuple[Any, Any]] = []
    stack = [tree] if isinstance(tree, (dict, list)) else []
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if len(keys) > 200:
            keys = keys[:10]
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                stack.append(holder[key])
    return found
