"""Each field says what it means for a request that passes from worker to worker."""

from typing import Any, get_args

import pytest

from toolkit.policies.base import RequestView
from toolkit.router import first_token, one_token, resumable
from toolkit.router.request import WHOLE, Endpoint, SubRequest
from toolkit.router.validate.asked import asked
from toolkit.router.validate.endpoints import ENDPOINTS, SAMPLING
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.handover import NO_TEXT, UNJUDGED, UNTRIED, Handover

ENDINGS: dict[Endpoint, dict[str, Any]] = {
    "chat": {"max_tokens": 1},
    "completions": {"max_tokens": 1},
    "generate": {"sampling_params": {"max_new_tokens": 1}},
    "messages": {"max_tokens": 1},
    "responses": {},
}
"""Endpoints that generate, and the body of a request for one token."""
MADE_BY_ROWS: tuple[Endpoint, ...] = ("chat", "completions", "generate", "messages")
WELL = {"late": True, "told": True, "tickets": True}


def rows() -> list[tuple[Endpoint, bool, Field]]:
    """Of every field that may reach a worker that generates; whether it is a sampling parameter."""
    found: list[tuple[Endpoint, bool, Field]] = []
    for endpoint in ENDINGS:
        found += [(endpoint, False, row) for row in ENDPOINTS[endpoint].values()]
    found += [("generate", True, row) for row in SAMPLING.values()]
    return [each for each in found if each[2].policy is Fate.PASS or each[2].allow]


CAREFUL = [each for each in rows() if not each[2].handover.alike]


def sub_request(endpoint: Endpoint, body: dict[str, Any]) -> SubRequest:
    return SubRequest(endpoint, "/", body, "r", 0, True, RequestView(prompt_tokens=1))


def asking(endpoint: Endpoint, sampling: bool, row: Field, value: Any) -> SubRequest:
    """A request for one token with this field."""
    body = dict(ENDINGS[endpoint])
    if sampling:
        body["sampling_params"] = {**body["sampling_params"], row.name: value}
    else:
        body[row.name] = value
    return sub_request(endpoint, body)


def test_every_field_that_clients_may_send_is_judged() -> None:
    unjudged = [f"{where}.{row.name}" for where, _, row in rows() if row.handover is UNJUDGED]
    assert unjudged == [], "say in the row whether prefill may tell its first token (handover=)"
    assert set(ENDINGS) == set(get_args(Endpoint)) - WHOLE - {"count_tokens"}


def test_one_name_means_one_thing() -> None:
    known: dict[str, tuple[bool, bool, bool]] = {}
    for _, _, row in rows():
        said = row.handover
        answers = (said.first_token, said.resumable, said.prefill_only)
        assert known.setdefault(row.name, answers) == answers, row.name


def test_no_first_token_goes_out_that_nobody_could_go_on_behind() -> None:
    with pytest.raises(ValueError, match="no worker could go on: a reason"):
        Handover("a reason", resumable=False)
    assert not (UNJUDGED.first_token or UNJUDGED.resumable or UNJUDGED.prefill_only)


def test_the_rows_with_more_than_tokens_are_there() -> None:
    """Those of which it was found out one by one, before rows said so."""
    kept = {row.name for _, _, row in CAREFUL if not row.handover.resumable}
    assert kept >= {"logprobs", "return_logprob", "token_ids_logprob", "return_hidden_states"}
    assert kept >= {"return_sampling_mask", "return_routed_experts", "seed", "sampling_seed"}
    assert kept >= {"custom_logit_processor", "return_entropy", "return_indexer_topk"}
    waiting = {row.name for _, _, row in CAREFUL if not row.handover.first_token}
    assert waiting >= {"stop_regex", "custom_params", "max_thinking_tokens", "lora_path", "task"}
    assert waiting >= {"return_meta_info", "return_cached_tokens_details", "images_config"}
    decode = {row.name for _, _, row in CAREFUL if not row.handover.prefill_only}
    assert decode >= {"return_hidden_states", "return_entropy", "beam_width"}


@pytest.mark.parametrize(
    ("endpoint", "sampling", "row"), [pytest.param(*each, id=f"{each[0]}.{each[2].name}")
                                      for each in CAREFUL]
)  # fmt: skip
def test_what_a_row_says_is_what_the_router_does(
    endpoint: Endpoint, sampling: bool, row: Field
) -> None:
    asked_for = asking(endpoint, sampling, row, 2)
    assert list(asked(endpoint, asked_for.body)) == [row]
    why = resumable.why_not(asked_for)
    assert (why is None) == row.handover.resumable
    assert why is None or why == f"{row.name}: {row.handover.why}"
    if endpoint in MADE_BY_ROWS:
        assert one_token.is_one(asked_for) == row.handover.prefill_only
        waits = first_token.why_decode(asked_for, **WELL)
        assert (waits == "") == row.handover.first_token
    nothings: list[Any] = [None, False, "", [], row.default]
    for nothing in nothings:
        assert list(asked(endpoint, asking(endpoint, sampling, row, nothing).body)) == []


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BLOCK = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
WITH_MEDIA: list[tuple[Endpoint, dict[str, Any]]] = [
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}),
    ("chat", {"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]}),
    ("messages", {"messages": [{"role": "user", "content": [BLOCK]}]}),
    ("messages", {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "content": [BLOCK]}]}]}),
    ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]}),
    ("responses", {"input": [{"type": "function_call_output", "output": [IMAGE]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "body"), WITH_MEDIA)
def test_a_stream_with_media_in_it_goes_on_nowhere_else(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """Workers of mode: plain take media. Another worker would not know their positions."""
    name = next(iter(body))
    assert resumable.why_not(sub_request(endpoint, body)) == f"{name}: {NO_TEXT.why}"
    if endpoint in MADE_BY_ROWS:
        assert NO_TEXT.why in first_token.why_decode(sub_request(endpoint, body), **WELL)


def test_parts_that_are_text_to_a_model_go_on_and_wait_for_decode() -> None:
    call: list[Any] = [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]
    thinking = [{"type": "thinking", "thinking": "so"}]
    for parts in (call, thinking, ["odd"], [{"type": "tool_result", "content": "done"}]):
        asked_for = sub_request("messages", {"messages": [{"role": "user", "content": parts}]})
        assert resumable.why_not(asked_for) is None
        assert UNTRIED.why in first_token.why_decode(asked_for, **WELL)
    for content in ("a", [{"type": "text", "text": "a"}], [], None):
        asked_for = sub_request("chat", {"messages": [{"role": "user", "content": content}]})
        assert resumable.why_not(asked_for) is None
        assert first_token.why_decode(asked_for, **WELL) == ""


def test_an_adapter_waits_for_decode() -> None:
    for model, waits in (("base", False), ("base:", False), ("base:a", True), (None, False)):
        asked_for = sub_request("chat", {"model": model})
        assert (UNTRIED.why in first_token.why_decode(asked_for, **WELL)) == waits
        assert resumable.why_not(asked_for) is None


def test_zero_asks_unless_it_is_the_default() -> None:
    def names(endpoint: Endpoint, **body: Any) -> list[str]:
        return [row.name for row in asked(endpoint, body)]

    assert names("completions", logprobs=0) == ["logprobs"]
    assert names("chat", logprobs=True, top_logprobs=0) == ["logprobs"]
    assert names("generate", max_thinking_tokens=0) == ["max_thinking_tokens"]
    assert names("generate", routed_experts_start_len=0, top_logprobs_num=0) == []
    assert names("completions", seed=0) == ["seed"]
    assert names("completions", seed=0, temperature=0) == []
    assert names("generate", sampling_params={"sampling_seed": 0, "temperature": 0.0}) == []


def test_tools_that_cannot_be_called_ask_for_nothing() -> None:
    tools = {"tools": [{"type": "function"}]}
    for choice, names in ((None, ["tools"]), ("auto", ["tools"]), ("none", [])):
        for endpoint in ("chat", "messages"):
            found = asked(endpoint, tools | {"tool_choice": choice})
            assert [row.name for row in found] == names
    one = sub_request("chat", tools | {"max_tokens": 1})
    assert one_token.is_one(one) and resumable.why_not(one) is None


def test_a_name_that_only_another_endpoint_knows_counts_as_there() -> None:
    def names(endpoint: str, **body: Any) -> list[str]:
        return [row.name for row in asked(endpoint, body)]

    assert names("completions", tools=[{}]) == ["tools"]
    assert names("chat", return_logprob=True, beam_width=2) == ["return_logprob", "beam_width"]
    assert names("messages", logprobs=3, stop_regex="a") == ["logprobs", "stop_regex"]
    assert names("generate", input=["a"], documents=["b"], text="c") == []


def test_sampling_parameters_are_those_of_generate_only() -> None:
    params = {"sampling_params": {"beam_width": 2, "stop_regex": "a"}}
    assert [row.name for row in asked("generate", params)] == ["beam_width", "stop_regex"]
    assert list(asked("completions", params)) == []
    for wrong in (None, [{"beam_width": 2}], "beam_width"):
        assert list(asked("generate", {"sampling_params": wrong})) == []
