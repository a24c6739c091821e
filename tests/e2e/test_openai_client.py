"""The official `openai` client against the router."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from toolkit.embedded import model_path
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

MESSAGES = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Moscow"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(deployment: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=deployment.router_url + "/v1", api_key="none", timeout=120, max_retries=0
    ) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return str(client.models.list().data[0].id)


GREEDY = {"temperature": 0.0, "extra_body": {"ignore_eos": True}}


def test_the_model_can_be_retrieved(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model


def test_chat_streams_what_it_answers_whole(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    assert len({c.id for c in chunks}) == 1


def test_completions_stream_what_they_answer_whole(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "prompt": "def add(a, b):", "max_tokens": 12, **GREEDY}
    whole = client.completions.create(**asked)
    text = "".join(c.choices[0].text for c in client.completions.create(**asked, stream=True))
    assert text == whole.choices[0].text
    assert whole.usage.completion_tokens == 12


def test_two_choices(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 8, "n": 2, **GREEDY}
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].message.content == whole.choices[1].message.content
    assert whole.usage.completion_tokens == 16
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) == {whole.choices[0].message.content}


def test_batched_prompts_answer_in_order(client: openai.OpenAI, model: str) -> None:
    prompts = ["def add(a, b):", "The heart", "def add(a, b):"]
    asked = {"model": model, "max_tokens": 6, **GREEDY}
    batch = client.completions.create(prompt=prompts, **asked)
    assert [choice.index for choice in batch.choices] == [0, 1, 2]
    single = [client.completions.create(prompt=p, **asked).choices[0].text for p in prompts]
    assert [choice.text for choice in batch.choices] == single
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(prompt=prompts, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == single


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer(client: openai.OpenAI, model: str, stream: bool) -> None:
    asked = {"model": model, "prompt": "def add(a, b):", "max_tokens": 24, **GREEDY}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole.strip()[2:5]
    if stream:
        chunks = list(client.completions.create(**asked, stop=[stop], stream=True))
        text = "".join(c.choices[0].text for c in chunks)
        reason = [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason]
        assert reason == ["stop"]
    else:
        choice = client.completions.create(**asked, stop=[stop]).choices[0]
        text, reason = choice.text, [choice.finish_reason]
        assert reason == ["stop"]
    assert text == whole[: whole.index(stop)]


def test_chat_logprobs(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 5, **GREEDY}
    asked |= {"logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(whole) == 5
    for token in whole:
        assert len(token.top_logprobs) == 3
        best = max(candidate.logprob for candidate in token.top_logprobs)
        assert token.logprob == pytest.approx(best)
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in whole]


def test_prompt_logprobs_come_with_echo(client: openai.OpenAI, model: str) -> None:
    prompt = "def add(a, b):"
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=3, logprobs=1, echo=True, **GREEDY
    )
    choice = answer.choices[0]
    assert choice.text.startswith(prompt)
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + 3
    known = [value for value in choice.logprobs.token_logprobs if value is not None]
    assert len(known) >= len(choice.logprobs.tokens) - 1
    assert all(value <= 0 for value in known)


def white_space() -> list[str]:
    """Ids of the tokens that are nothing but white space."""
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size())
    return [str(token) for token in ids if not tokenizer.decode([token]).strip()]


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_tool_is_called(client: openai.OpenAI, model: str, stream: bool) -> None:
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,  # else the small model goes on calling
        "max_tokens": 200,
        "temperature": 0.0,
        # The grammar allows any white space, and the small model would fill its answer with tabs.
        "logit_bias": dict.fromkeys(white_space(), -100),
    }
    # A server without --tool-call-parser, as the demo's is, leaves the call in the content.
    if stream:
        chunks = client.chat.completions.create(**asked, stream=True)
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        content = "".join(delta.content or "" for delta in deltas)
        parts = [call.function for delta in deltas for call in delta.tool_calls or []]
    else:
        message = client.chat.completions.create(**asked).choices[0].message
        content = message.content or ""
        parts = [call.function for call in message.tool_calls or []]
    if parts:
        name = "".join(part.name or "" for part in parts)
        arguments = json.loads("".join(part.arguments or "" for part in parts))
    else:
        [call] = json.loads(content)
        name, arguments = call["name"], call["parameters"]
    assert name == "get_weather"
    assert arguments["city"] in ("Paris", "Moscow")


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"max_tokens": -5},
        {"top_p": 7},
        {"n": 0},
        {"messages": []},
        {"messages": "hello"},
        {"max_tokens": "many"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "none"}}},
    ],
    ids=lambda body: "-".join(body),
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_the_clients_error(
    client: openai.OpenAI, model: str, wrong: dict[str, Any], stream: bool
) -> None:
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 4, "stream": stream} | wrong
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.message


def test_a_prompt_beyond_the_context_is_a_bad_request(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"(?i)context|longer|tokens"):
        client.completions.create(model=model, prompt=[5] * 20_000, max_tokens=4)


def test_an_unknown_route_is_not_found(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.images.generate(model=model, prompt="a cat")
