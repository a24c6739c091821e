"""Who tells a stream's first token: prefill where that is sure, and then nothing comes twice."""

from typing import Any

import pytest

from toolkit.policies.base import RequestView
from toolkit.router import first_token
from toolkit.router.first_token import why_decode
from toolkit.router.request import Endpoint, SubRequest

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/generate",
}
WELL = {"late": True, "told": True, "tickets": True}


def sub_request(endpoint: Endpoint = "completions", stream: bool = True, **body: Any) -> SubRequest:
    return SubRequest(endpoint, PATHS[endpoint], body, "r", 0, stream, RequestView(prompt_tokens=1))


def params(**given: Any) -> dict[str, Any]:
    return {"sampling_params": given}


TOOLS = [{"type": "function", "function": {"name": "f"}}]
PICTURE = [{"role": "user", "content": [{"type": "text"}, {"type": "image_url"}]}]
AT_ONCE: list[tuple[Endpoint, dict[str, Any]]] = [
    ("completions", {}),
    ("completions", {"echo": True, "n": 3, "stop": ["x"], "max_tokens": 1, "logit_bias": {"3": 1}}),
    ("completions", {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 1.0, "min_tokens": 3}),
    ("completions", {"regex": "a+", "ebnf": None, "json_schema": None, "stop_token_ids": [4]}),
    ("completions", {"logprobs": None, "seed": 3, "temperature": 0, "return_token_ids": True}),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("chat", {"tools": TOOLS, "tool_choice": "none", "logprobs": False}),
    ("chat", {"tools": [], "tool_choice": "auto", "separate_reasoning": True}),
    ("chat", {"response_format": {"type": "json_object"}, "user": "u", "store": True}),
    ("generate", params(max_new_tokens=1, stop="x", stream_interval=3, min_new_tokens=1)),
    ("generate", params(sampling_seed=1, temperature=0)),
    ("generate", {"sampling_params": None, "return_logprob": False}),
]
WAITING: list[tuple[Endpoint, dict[str, Any], str]] = [
    ("completions", {"logprobs": 1}, "logprobs: those of the first tokens"),
    ("completions", {"logprobs": 0}, "logprobs: those of the first tokens"),
    ("completions", {"seed": 3, "temperature": 0.5}, "random state"),
    ("completions", {"seed": 0}, "random state"),
    ("completions", {"stop_regex": "a"}, "stop_regex"),
    ("chat", {"tools": TOOLS}, "tools"),
    ("chat", {"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ("chat", {"messages": PICTURE}, "no text"),
    ("chat", {"logprobs": True}, "logprobs"),
    ("chat", {"custom_params": {"thinking_budget": 3}}, "custom_params"),
    ("generate", {"return_logprob": True}, "return_logprob"),
    ("generate", {"token_ids_logprob": [3]}, "token_ids_logprob"),
    ("generate", {"return_hidden_states": True}, "hidden_states"),
    ("generate", {"input_embeds": [[0.5]]}, "input_embeds"),
    ("generate", {"custom_logit_processor": "x"}, "custom_logit_processor"),
    ("generate", params(stop_regex=["a"]), "stop_regex"),
    ("generate", params(custom_params={"a": 1}), "custom_params"),
    ("generate", params(sampling_seed=1), "random state"),
]


@pytest.mark.parametrize(("endpoint", "body"), AT_ONCE)
def test_prefill_tells_what_is_sure(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert why_decode(sub_request(endpoint, **body), **WELL) == ""


@pytest.mark.parametrize(("endpoint", "body", "said"), WAITING)
def test_what_is_not_sure_waits(endpoint: Endpoint, body: dict[str, Any], said: str) -> None:
    assert said in why_decode(sub_request(endpoint, **body), **WELL)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [("late", "before the prefill"), ("told", "does not tell"), ("tickets", "go on from it")],
)
def test_workers_must_be_able_to(lacking: str, said: str) -> None:
    assert said in why_decode(sub_request(), **(WELL | {lacking: False}))


def test_a_request_by_itself() -> None:
    assert "does not stream" in why_decode(sub_request(stream=False), **WELL)
    resumed, captured = sub_request(), sub_request()
    resumed.resume_ids, captured.capture = [3], True
    assert "has a first token" in why_decode(resumed, **WELL)
    assert "experts" in why_decode(captured, **WELL)


def test_the_patch_has_this_name() -> None:
    assert first_token.PATCH == "first_token"
