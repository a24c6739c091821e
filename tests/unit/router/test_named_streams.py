"""Streams of /v1/messages and /v1/responses that another worker goes on with."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.router.failure import failure_of
from toolkit.router.grammars import grammar_of, is_over
from toolkit.router.request import Endpoint
from toolkit.router.resume import Sent, Trimmer, split_events

Event = dict[str, Any]


def pieces(text: str, seed: int) -> list[str]:
    """The text as the tokens of one worker come."""
    source, out = random.Random(seed), []
    while text:
        size = source.randint(1, 4)
        out.append(text[:size])
        text = text[size:]
    return out


def messages(text: str, thought: str, seed: int) -> list[Event]:
    """As `AnthropicServing._generate_anthropic_stream` writes them (SGLang 0.5.21)."""
    message = {
        "id": f"msg_{seed}",
        "role": "assistant",
        "content": [],
        "usage": {"input_tokens": 9},
    }
    out: list[Event] = [{"type": "message_start", "message": message}]
    blocks = [("thinking", thought), ("text", text)] if thought else [("text", text)]
    for index, (kind, whole) in enumerate(blocks):
        block = {"type": kind, kind: ""}
        out.append({"type": "content_block_start", "index": index, "content_block": block})
        out += [
            {"type": "content_block_delta", "index": index,
             "delta": {"type": f"{kind}_delta", kind: piece}}
            for piece in pieces(whole, seed)
        ]  # fmt: skip
        out.append({"type": "content_block_stop", "index": index})
    out.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": len(text)}})  # fmt: skip
    return [*out, {"type": "message_stop"}]


def responses(text: str, thought: str, seed: int) -> list[Event]:
    """As `_responses_stream_generator_non_harmony` writes them (SGLang 0.5.21)."""
    made = {"id": "resp_1", "created_at": seed, "status": "in_progress", "output": []}
    out: list[Event] = [
        {"type": "response.created", "response": made},
        {"type": "response.in_progress", "response": made},
    ]
    items = []
    for index, (kind, whole) in enumerate([("reasoning", thought), ("message", text)]):
        name = f"{kind}_{seed}"
        delta = "response.reasoning_text" if kind == "reasoning" else "response.output_text"
        place = {"output_index": index, "content_index": 0, "item_id": name}
        out.append({"type": "response.output_item.added", "output_index": index,
                    "item": {"id": name, "type": kind}})  # fmt: skip
        out += [{"type": delta + ".delta", "delta": p, **place} for p in pieces(whole, seed)]
        out.append({"type": delta + ".done", "text": whole, **place})
        items.append({"id": name, "type": kind, "text": whole})
        out.append({"type": "response.output_item.done", "output_index": index, "item": items[-1]})
    answer = {**made, "status": "completed", "output": items}
    out.append({"type": "response.completed", "response": answer})
    return [{**event, "sequence_number": number} for number, event in enumerate(out)]


MAKERS = {"messages": messages, "responses": responses}


def wire(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def read(raw: bytes) -> list[Event]:
    out = []
    for data in split_events(raw):
        name, _, body = data.partition(b"\ndata: ")
        event = json.loads(body)
        assert name == b"event: " + event["type"].encode()
        out.append(event)
    return out


def joined(events: list[Event]) -> list[Event]:
    """The events with neighbouring deltas of one place put together."""
    out: list[Event] = []
    for event in json.loads(json.dumps(events)):
        event.pop("sequence_number", None)
        last = out[-1] if out else {}
        kind = event["type"]
        delta = kind.endswith("delta") and kind != "message_delta"
        if not delta or (last["type"], last.get("index")) != (kind, event.get("index")):
            out.append(event)
        elif isinstance(event["delta"], str):
            last["delta"] += event["delta"]
        else:
            for name in ("text", "thinking"):
                if name in event["delta"]:
                    last["delta"][name] += event["delta"][name]
    return out


def resumed(endpoint: Endpoint, runs: list[list[Event]], cuts: list[int]) -> list[Event]:
    """What a client gets that has `cuts` events of each run but the last."""
    sent, out = Sent(endpoint), b""
    for number, run in enumerate(runs):
        trimmer = Trimmer(endpoint, sent.progress()) if sent.events else None
        left = cuts[number] if number < len(cuts) else len(run)
        for event in run:
            data: bytes | None = wire(event)
            if trimmer is not None:
                data = trimmer.cut(wire(event))
            if data is None:
                continue
            if not left:
                break
            left -= 1
            sent.add(data)
            out += data
    return read(out)


@pytest.mark.parametrize("endpoint", MAKERS)
@given(
    text=st.text(st.sampled_from("abc é中"), min_size=1, max_size=30),
    thought=st.text(st.sampled_from("xy z"), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_client_cannot_tell_that_its_stream_changed_workers(
    endpoint: Endpoint, text: str, thought: str, cuts: list[int]
) -> None:
    make = MAKERS[endpoint]
    runs = [make(text, thought, seed) for seed in range(len(cuts) + 1)]
    if endpoint == "messages":  # a run that has come to its end is not resumed
        cuts = [min(cut, len(run) - 1) for cut, run in zip(cuts, runs, strict=False)]
    got = resumed(endpoint, runs, cuts)
    first = next(event for event in got if "response" in event or "message" in event)
    seed = first.get("response", {}).get("created_at")
    if endpoint == "messages":
        assert joined(got)[1:] == joined(runs[0])[1:]
        assert [event["type"] for event in got].count("message_start") == 1
        return
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    names = {each for each in json.dumps(got).split('"') if each.startswith("message_")}
    assert len(names) == 1  # one name for the message, whichever run began it
    assert got[-1]["response"]["created_at"] == seed
    assert "".join(e["delta"] for e in got if e["type"] == "response.output_text.delta") == text
    kinds = [event["type"] for event in joined(got)]
    assert kinds == [event["type"] for event in joined(runs[0])]


def test_a_tool_call_keeps_the_id_that_its_client_has() -> None:
    def run(seed: int) -> list[Event]:
        tool = {"type": "tool_use", "id": f"call_{seed}", "name": "f", "input": {}}
        parts = ['{"a"', ": 1}"] if seed else ['{"a": ', "1}"]
        return [
            {"type": "message_start", "message": {"id": f"msg_{seed}"}},
            {"type": "content_block_start", "index": 0, "content_block": tool},
            *(
                {"type": "content_block_delta", "index": 0,
                 "delta": {"type": "input_json_delta", "partial_json": part}}
                for part in parts
            ),
            {"type": "content_block_stop", "index": 0},
        ]  # fmt: skip

    for cut in range(1, 4):
        got = resumed("messages", [run(0), run(1)], [cut])
        calls = [e["content_block"]["id"] for e in got if "content_block" in e]
        assert calls == ["call_0" if cut > 1 else "call_1"]
        assert "".join(e["delta"]["partial_json"] for e in got if "delta" in e) == '{"a": 1}'


def test_how_such_streams_end_and_fail() -> None:
    over = {"messages": "message_stop", "responses": "response.incomplete"}
    for endpoint, kind in over.items():
        last, ends = wire({"type": kind}), grammar_of(endpoint).ends  # type: ignore[arg-type]
        assert is_over(last, ends)
        assert is_over(wire({"type": "ping"}) + last, ends)
        assert not is_over(last + wire({"type": "ping"}), ends)
    full = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}
    failure = failure_of(wire(full), "messages")
    assert failure is not None
    assert (failure.status, failure.message) == (503, "full")

    def failed(message: str) -> Event:
        error = {"code": "server_error", "message": message}
        return {"type": "response.failed", "response": {"error": error}}

    lost = failure_of(wire(failed("Decode transfer failed")), "responses")
    assert lost is not None
    assert lost.status == 500
    # SGLang says nothing else of a wrong request: not a worker's failure, and an end.
    wrong = wire(failed("The input is longer than the model's context"))
    assert failure_of(wrong, "responses") is None
    assert is_over(wrong, grammar_of("responses").ends)
