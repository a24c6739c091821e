"""/v1/messages and /v1/responses with prefill and decode apart, against a plain server."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e import calls
from tests.e2e.workers import settled, state
from toolkit.launch.running import Running
from toolkit.router.resume import split_events

pytestmark = pytest.mark.e2e

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
RANDOM = {"id", "item_id", "created_at", "sequence_number", "model", "cached_tokens"}
"""What differs between two servers; of these the plain one has no prefix cache."""
TOOL = {
    "name": "get_weather", "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
        {"type": "text", "text": "And tomorrow?"}]},
]  # fmt: skip


def asked(path: str, tokens: int, text: str = "The sea is", **more: Any) -> dict[str, Any]:
    """A greedy request; the server of /v1/responses takes 2 tokens off its limit."""
    body: dict[str, Any] = {"model": "embedded", "temperature": 0, **more}
    if path == MESSAGES:
        return {"max_tokens": tokens, "messages": [{"role": "user", "content": text}], **body}
    return {"max_output_tokens": tokens + 2, "input": text, **body}


async def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    """Status, and the answer or the events of its stream."""
    async with calls.session() as http, http.post(url + path, json=body) as answer:
        raw = await answer.read()
    if not answer.content_type.startswith("text/event-stream"):
        return answer.status, json.loads(raw)
    return answer.status, [event(data) for data in split_events(raw)]


def event(data: bytes) -> dict[str, Any]:
    name, _, body = data.partition(b"\ndata: ")
    found: dict[str, Any] = json.loads(body)
    assert name == b"event: " + found["type"].encode()
    return found


def same(value: Any) -> Any:
    """Without what is random, and without a model's name."""
    if isinstance(value, list):
        return [same(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: same(each) for key, each in value.items() if key not in RANDOM}


def text_of(path: str, events: list[dict[str, Any]]) -> str:
    if path == MESSAGES:
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def without_deltas(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [same(e) for e in events if not e["type"].endswith(("block_delta", "text.delta"))]


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (MESSAGES, asked(MESSAGES, 12)),
    (MESSAGES, asked(MESSAGES, 1)),  # its prefill worker answers it
    (MESSAGES, asked(MESSAGES, 12, system="Be brief.", stop_sequences=["."])),
    (MESSAGES, asked(MESSAGES, 12, messages=TALK, tools=[TOOL], tool_choice={"type": "auto"})),
    (RESPONSES, asked(RESPONSES, 12)),
    (RESPONSES, asked(RESPONSES, 12, instructions="Be brief.", store=False)),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=lambda x: x if isinstance(x, str) else "")
async def test_answers_are_those_of_a_plain_server(
    deployment: Running, plain_server: str, path: str, body: dict[str, Any]
) -> None:
    whole, plain = await asyncio.gather(
        post(deployment.router_url, path, body), post(plain_server, path, body)
    )
    assert plain[0] == 200, plain
    assert (whole[0], same(whole[1])) == (plain[0], same(plain[1]))
    stream = body | {"stream": True}
    ours, theirs = await asyncio.gather(
        post(deployment.router_url, path, stream), post(plain_server, path, stream)
    )
    assert text_of(path, ours[1]) == text_of(path, theirs[1])
    assert without_deltas(ours[1]) == without_deltas(theirs[1])
    if path == RESPONSES:
        assert [e["sequence_number"] for e in ours[1]] == list(range(len(ours[1])))


WRONG: list[tuple[str, dict[str, Any]]] = [
    (MESSAGES, asked(MESSAGES, 4, max_tokens=0)),
    (MESSAGES, {"model": "m", "max_tokens": 4}),
    (MESSAGES, asked(MESSAGES, 4, messages=[{"role": "nobody", "content": "x"}])),
    (MESSAGES, asked(MESSAGES, 4, tools=[{"name": "f"}])),
    (MESSAGES, asked(MESSAGES, 4, "word " * 20_000)),
    (RESPONSES, asked(RESPONSES, 4, tool_choice="required")),
    (RESPONSES, asked(RESPONSES, 4, "word " * 20_000)),
]


@pytest.mark.parametrize(("path", "body"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
async def test_wrong_requests_are_told_as_a_plain_server_tells_them(
    deployment: Running, plain_server: str, path: str, body: dict[str, Any]
) -> None:
    ours = await post(deployment.router_url, path, body)
    theirs = await post(plain_server, path, body)
    assert ours[0] == theirs[0] == 400
    assert ours[1].keys() == theirs[1].keys()
    assert ours[1]["error"].keys() == theirs[1]["error"].keys()
    assert ours[1]["error"]["message"]


@pytest.fixture
def client(deployment: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=deployment.router_url + "/v1", api_key="none", timeout=120, max_retries=0
    ) as client:
        yield client


def test_openai_s_client_reads_responses(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": "embedded", "input": "The sea is", "temperature": 0}
    whole = client.responses.create(max_output_tokens=14, **given)
    assert whole.id.startswith("resp_")
    assert whole.output_text
    assert whole.usage is not None
    text, last = "", None
    for each in client.responses.create(max_output_tokens=14, stream=True, **given):
        text += each.delta if each.type == "response.output_text.delta" else ""
        last = each
    assert text == whole.output_text
    assert last is not None
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    refused = {
        "previous_response_id": "resp_1", "background": True, "store": True,
        "conversation": "conv_1", "model": "embedded:adapter",
    }  # fmt: skip
    for name, value in refused.items():
        with pytest.raises(openai.BadRequestError, match=name):
            client.responses.create(**given | {name: value})
    with pytest.raises(openai.NotFoundError, match="share no state"):
        client.responses.retrieve("resp_1")


async def test_what_prefill_and_decode_apart_cannot_serve_is_refused_by_name(
    deployment: Running, plain_server: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.NotFoundError, match="mode: plain"):
        client.embeddings.create(model="embedded", input="hi")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="mode: plain"):
        client.chat.completions.create(
            model="embedded", messages=[{"role": "user", "content": [image]}]
        )
    with pytest.raises(openai.BadRequestError, match="LoRA adapter"):
        client.completions.create(model="embedded:adapter", prompt="hi")
    for path in ("/v1/rerank", "/v1/score", "/v1/classify"):
        status, body = await post(deployment.router_url, path, {"input": "hi"})
        assert (status, path in body["message"]) == (404, True)
    block = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    talk = [{"role": "user", "content": [block]}]
    status, body = await post(deployment.router_url, MESSAGES, asked(MESSAGES, 4, messages=talk))
    assert (status, body["type"]) == (400, "error")
    assert "media" in body["error"]["message"]
    count = {"model": "embedded", "messages": TALK, "tools": [TOOL]}
    path = "/v1/messages/count_tokens"
    counted = await post(deployment.router_url, path, count)
    assert counted == await post(plain_server, path, count)
    assert counted[1]["input_tokens"] > 20


def test_streams_outlive_their_decode_worker(deployment: Running) -> None:
    """One of each kind on each decode worker, one of which is killed in their middle."""

    async def one(path: str, text: str, tokens: int, begun: asyncio.Event) -> list[dict[str, Any]]:
        body = asked(path, tokens, text, stream=True)
        raw = b""
        async with (
            calls.session() as http,
            http.post(deployment.router_url + path, json=body) as answer,
        ):
            assert answer.status == 200
            async for data in answer.content.iter_any():
                raw += data
                if raw.count(b"delta") > 12:
                    begun.set()
        begun.set()  # too short, as the count of resumed streams will tell
        return [event(data) for data in split_events(raw)]

    long = ("1 2 3 4 5 6 7 8 9 10 11 12", "def add(a, b):\n    return")  # 120 tokens at least
    texts = [(path, text) for path in (MESSAGES, RESPONSES) for text in long]

    async def all_of() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(*(one(p, t, 120, asyncio.Event()) for p, t in texts))

    async def killed(victim: int) -> list[list[dict[str, Any]]]:
        begun = [asyncio.Event() for _ in texts]
        running = [
            asyncio.create_task(one(path, text, 120, event))
            for (path, text), event in zip(texts, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*running)

    worker = deployment.worker("decode-0")
    restarts, victim = worker.restarts, worker.pid
    assert victim is not None
    calm = calls.run(all_of())
    before = calls.run(state(deployment.router_url))["resumed"]
    disturbed = calls.run(killed(victim))
    assert calls.run(state(deployment.router_url))["resumed"] - before >= 2
    for (path, _), ours, theirs in zip(texts, disturbed, calm, strict=True):
        assert text_of(path, ours) == text_of(path, theirs)
        assert without_deltas(ours) == without_deltas(theirs)
        if path == RESPONSES:
            assert [e["sequence_number"] for e in ours] == list(range(len(ours)))
            names = {e["item_id"] for e in ours if "item_id" in e}
            assert names == {ours[-1]["response"]["output"][0]["id"]}
    deployment.wait_ready("decode-0", restarts + 1)
    calls.run(settled(deployment))
