"""Each value that a scheduler could not use is refused, with words; ordinary ones pass."""

import json
from typing import Any

import pytest

from tests.sglang_python import run_python

# (sampling parameters, other fields of the tokenized request, what is said of them)
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"logit_bias": []}, {}, "logit_bias: Expected `object | null`, got `array`"),
    ({"logit_bias": ""}, {}, "logit_bias: Expected `object | null`, got `str`"),
    ({"logit_bias": {"5": float("nan")}}, {}, "logit_bias of 5 must be in"),
    ({"logit_bias": {"5": float("inf")}}, {}, "logit_bias of 5 must be in"),
    ({"logit_bias": {"5": "x"}}, {}, "logit_bias: Expected `float`, got `str`"),
    ({"logit_bias": {"5": 10**400}}, {}, "logit_bias"),
    ({"logit_bias": {"8192": 1.0}}, {}, "an id must be in [0, 8191]"),
    ({"logit_bias": {"5_0": 1.0}}, {}, "no id"),
    ({"top_k": 10**30}, {}, "top_k must be in [1, 2147483647]"),
    ({"top_k": True}, {}, "top_k: Expected `int`, got `bool`"),
    ({"top_k": 1.5}, {}, "top_k: Expected `int`, got `float`"),
    ({"temperature": 1e308}, {}, "temperature must be in"),
    ({"temperature": float("nan")}, {}, "temperature must be in"),
    ({"temperature": 10**400}, {}, "temperature"),
    ({"min_p": float("nan")}, {}, "min_p must be a finite number"),
    ({"repetition_penalty": 1e-40}, {}, "repetition_penalty"),
    ({"max_new_tokens": 10**30, "min_new_tokens": 0}, {}, "max_new_tokens must be in"),
    ({"stream_interval": 0}, {}, "stream_interval must be in"),
    ({"stop_token_ids": {8192}}, {}, "stop_token_ids must be in"),
    ({"skip_special_tokens": 1}, {}, "skip_special_tokens: Expected `bool`, got `int`"),
    ({"no_stop_trim": "x"}, {}, "no_stop_trim: Expected `bool`, got `str`"),
    ({"beam_width": 2**31}, {}, "beam_width must be in"),
    ({"regex": [[]]}, {}, "regex: Expected `str | null`, got `array`"),
    ({"regex": "(" * 100 + ")" * 100}, {}, "nested deeper"),
    ({"json_schema": {"type": "object"}}, {}, "json_schema: Expected `str | null`"),
    ({"json_schema": "{"}, {}, "json_schema is no JSON"),
    ({"json_schema": '{"a":' * 80 + "1" + "}" * 80}, {}, "nested deeper"),
    ({"ebnf": "x" * 70000}, {}, "longer than"),
    ({"stop_regex": "(a)\\1"}, {}, "back reference"),
    ({"stop_regex": "(?:a?){1000}"}, {}, "are searched in the last 131"),
    ({"stop": ["a" * 2000] * 3}, {}, "stop has 6000 characters"),
    ({"custom_params": [1]}, {}, "custom_params must be an object"),
    ({"custom_params": {"thinking_budget": "x"}}, {}, "thinking_budget"),
    ({}, {"top_logprobs_num": 129}, "top_logprobs_num must be in [0, 128]"),
    ({}, {"top_logprobs_num": "x"}, "top_logprobs_num: Expected `int`, got `str`"),
    ({}, {"return_logprob": [True]}, "return_logprob: Expected `bool`, got `array`"),
    ({}, {"logprob_start_len": -7}, "logprob_start_len must be in"),
    ({}, {"token_ids_logprob": [8192]}, "token_ids_logprob must be in"),
    ({}, {"token_ids_logprob": [1.5]}, "token_ids_logprob: Expected `int`"),
    ({}, {"positional_embed_overrides": {"0": 1}}, "cannot be given by a client"),
    ({}, {"lora_id": [""]}, "lora_id: Expected `str | null`, got `array`"),
    ({}, {"input_ids": [1, 8192]}, "out-of-vocabulary token id 8192"),
    ({}, {"input_ids": [1, -1]}, "out-of-vocabulary token id -1"),
    ({}, {"input_ids": []}, "input_ids cannot be empty"),
    ({}, {"input_ids": [], "session_params": {"id": None}}, "input_ids cannot be empty"),
    ({}, {"input_embeds": [[0.0] * 7]}, "input_embeds must be of shape [tokens, 192]"),
    ({}, {"input_embeds": [[float("nan")] * 192]}, "input_embeds must be finite"),
    ({}, {"input_embeds": [[0.0], [0.0, 1.0]]}, "equally long"),
    ({}, {"extra_key": "\ud800"}, "extra_key is no valid Unicode text"),
    ({}, {"extra_key": "x" * 5000}, "extra_key is longer"),
    ({}, {"rid": ""}, "rid must be text"),
    ({}, {"rid": None}, "rid must be text"),
    ({}, {"priority": 2**70}, "priority must be in"),
    ({}, {"bootstrap_host": "x/../y"}, "bootstrap_host is no host"),
    ({}, {"bootstrap_port": 70000}, "bootstrap_port must be in"),
    ({}, {"bootstrap_room": -1, "bootstrap_host": "h"}, "bootstrap_room must be in"),
    ({}, {"bootstrap_room": 7}, "bootstrap_room needs the bootstrap_host"),
    ({}, {"disagg_prefill_dp_rank": -1}, "disagg_prefill_dp_rank must be in"),
    ({}, {"token_indices_to_pool": [5]}, "token_indices_to_pool must be in"),
    ({}, {"custom_logit_processor": "x"}, "takes no custom logit processor"),
    ({}, {"session_params": {"id": 5}}, "session_params.id: Expected `str | null`"),
]

PASSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"logit_bias": {}}, {}),
    ({"logit_bias": {"0": -100, "8191": 100.0}}, {}),
    ({"temperature": 0}, {}),
    ({"top_k": -1, "top_p": 1, "min_p": 0}, {}),
    ({"stop": ["a", ""], "stop_token_ids": {0, 8191}}, {}),
    ({"json_schema": '{"type": "object"}'}, {}),
    ({"json_schema": "$$ANY$$"}, {}),
    ({"ebnf": 'root ::= "a" | "b"'}, {}),
    ({"stop_regex": "\\d+\\s"}, {}),
    ({"max_new_tokens": None}, {}),
    ({"custom_params": {"mine": {"a": [1, {"b": 2}]}}}, {}),
    ({"sampling_seed": -(2**63)}, {}),
    ({}, {"input_ids": [0, 8191], "top_logprobs_num": 128, "return_logprob": True}),
    ({}, {"input_embeds": [[0.5] * 192]}),
    ({}, {"input_ids": [], "session_params": {"id": "s"}}),
    ({}, {"bootstrap_host": "node-1.example", "bootstrap_port": 8998, "bootstrap_room": 2**62}),
    ({}, {"bootstrap_host": "[::1]", "return_hidden_states": "last"}),
    ({}, {"session_params": {"id": "a"}, "extra_key": "é", "priority": -3}),
]

CHECK = """
import sys
import json
from array import array
from patches.http.request_values import RequestLimits, wrong
from sglang.srt.managers.io_struct import SessionParams, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
from toolkit.embedded import model_path
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(model_path())
limits = RequestLimits(vocabulary=8192, context=4096, hidden=192, disaggregated=True, calls=True)
cases = eval(sys.stdin.read(), {"nan": float("nan"), "inf": float("inf")})
found = []
for sampling, fields in cases:
    params = SamplingParams(**({"max_new_tokens": 3} | sampling))
    try:
        params.normalize(tokenizer)
    except Exception:
        pass
    fields = {
        "input_text": "x", "input_ids": [1, 2], "mm_inputs": None, "return_logprob": False,
        "logprob_start_len": -1, "top_logprobs_num": 0, "token_ids_logprob": None,
        "stream": False, "rid": "rid", "input_embeds": None, "token_type_ids": None,
    } | fields
    fields["input_ids"] = array("q", fields["input_ids"])
    if "session_params" in fields:
        fields["session_params"] = SessionParams(**fields["session_params"])
    found.append(wrong(TokenizedGenerateReqInput(sampling_params=params, **fields), limits))
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def verdicts() -> list[str | None]:
    """What is said of each case, from one process: importing SGLang takes ten seconds."""
    cases = [(sampling, fields) for sampling, fields, _ in REFUSED] + PASSED
    done = run_python(CHECK, given=repr(cases))
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line[6:])


def test_what_a_scheduler_cannot_use_is_refused_with_words(verdicts: list[str | None]) -> None:
    refused = list(zip(REFUSED, verdicts[: len(REFUSED)], strict=True))
    assert [(case, said) for case, said in refused if said is None or case[2] not in said] == []


def test_ordinary_values_pass(verdicts: list[str | None]) -> None:
    passed = list(zip(PASSED, verdicts[len(REFUSED) :], strict=True))
    assert [(case, said) for case, said in passed if said is not None] == []
