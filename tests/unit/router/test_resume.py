"""Trimming: whatever the chunking of the original and of the replay, nothing is lost or doubled."""

import copy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from toolkit.router.resume import Sent, Trimmer, parse_event, split_events

texts = st.text(max_size=30)


def cuts(draw: st.DrawFn, text: str) -> list[str]:
    points = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *points], [*points, len(text)], strict=True)]


@st.composite
def chat_events(
    draw: st.DrawFn, reasoning: str, content: str, arguments: str, ident: str
) -> list[Any]:
    """One way to stream the same message."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "reasoning_content": None}]
    deltas += [{"reasoning_content": part} for part in cuts(draw, reasoning)]
    deltas += [{"content": part, "reasoning_content": None} for part in cuts(draw, content)]
    head = {"index": 0, "id": f"call_{ident}", "type": "function",
            "function": {"name": "look", "arguments": ""}}  # fmt: skip
    if arguments:
        deltas.append({"tool_calls": [head]})
        for part in cuts(draw, arguments):
            call = {"index": 0, "id": None, "function": {"name": None, "arguments": part}}
            deltas.append({"tool_calls": [call]})
    events = [
        {"id": ident, "created": len(ident),
         "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]  # fmt: skip
    events.append({"id": ident, "created": len(ident),
                   "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})  # fmt: skip
    usage = {"completion_tokens": 7}
    events.append({"id": ident, "created": len(ident), "choices": [], "usage": usage})
    return events


def encode(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def read(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together."""
    out: dict[str, Any] = {"content": "", "reasoning_content": "", "arguments": ""}
    out |= {"roles": 0, "names": [], "finish": [], "usage": []}
    for event in events:
        out["usage"] += [event["usage"]] if "usage" in event else []
        for choice in event["choices"]:
            delta = choice["delta"]
            out["roles"] += bool(delta.get("role"))
            for name in ("content", "reasoning_content"):
                out[name] += delta.get(name) or ""
            for call in delta.get("tool_calls") or ():
                if call["function"].get("name"):
                    out["names"].append(call["function"]["name"])
                out["arguments"] += call["function"].get("arguments") or ""
            if choice["finish_reason"]:
                out["finish"].append(choice["finish_reason"])
    return out


@given(st.data(), texts, texts, texts)
def test_chat_streams_go_on_seamlessly(
    data: st.DataObject, reasoning: Any, content: Any, arguments: Any
) -> None:
    original = data.draw(chat_events(reasoning, content, arguments, "first"))
    replay = data.draw(chat_events(reasoning, content, arguments, "second"))
    whole = read(copy.deepcopy(original))
    broken_at = data.draw(st.integers(1, len(original)))
    sent = Sent("chat")
    sent.FOLD_BYTES = data.draw(st.sampled_from([1, 300, 10**6]))
    got = original[:broken_at]
    for event in got:
        sent.add(encode(event))
    # a second failure, in the middle of the replay
    again = data.draw(st.integers(0, len(replay)))
    for events in (replay[:again], data.draw(chat_events(reasoning, content, arguments, "third"))):
        trimmer = Trimmer("chat", sent.progress())
        rest = []
        for event in events:
            cut = trimmer.cut(encode(event).strip())
            if cut is not None:
                rest.append(cut)
        for cut in rest:
            sent.add(cut)
            got = [*got, parse_event(cut)]
    result = read(got)
    assert result == whole
    assert {event["id"] for event in got} == {"first"}
    assert {event["created"] for event in got} == {len("first")}


@given(st.data(), texts)
def test_completions_with_logprobs(data: st.DataObject, text: Any) -> None:
    tokens = list(text)

    def stream(parts: list[str]) -> list[dict[str, Any]]:
        return [
            {"id": "x", "created": 1, "choices": [{
                "index": 0, "text": part, "finish_reason": "stop" if last else None,
                "logprobs": {"tokens": list(part), "token_logprobs": [0.5] * len(part),
                             "top_logprobs": [], "text_offset": [-1] * len(part)},
            }]}
            for part, last in [*((part, False) for part in parts), ("", True)]
        ]  # fmt: skip

    original, replay = stream(data.draw(parts_of(text))), stream(data.draw(parts_of(text)))
    sent = Sent("completions")
    got = original[: data.draw(st.integers(0, len(original)))]
    for event in got:
        sent.add(encode(event))
    trimmer = Trimmer("completions", sent.progress())
    for event in replay:
        cut = trimmer.cut(encode(event))
        if cut is not None:
            got = [*got, parse_event(cut)]  # type: ignore[list-item]
    choices = [event["choices"][0] for event in got]
    assert "".join(choice["text"] for choice in choices) == text
    assert [t for choice in choices for t in choice["logprobs"]["tokens"]] == tokens
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


@st.composite
def parts_of(draw: st.DrawFn, text: str) -> list[str]:
    return cuts(draw, text)


@given(st.data(), st.integers(1, 20))
def test_generate_cumulative_never_goes_back(data: st.DataObject, count: int) -> None:
    def event(upto: int, rid: str, finish: object = None) -> dict[str, Any]:
        return {"text": "x" * upto, "output_ids": [7] * upto,
                "meta_info": {"id": rid, "completion_tokens": upto,
                              "finish_reason": finish}}  # fmt: skip

    broken = data.draw(st.integers(1, count))
    sent = Sent("generate")
    for upto in range(1, broken + 1):
        sent.add(encode(event(upto, "a")))
    start = data.draw(st.integers(1, broken))
    trimmer = Trimmer("generate", sent.progress())
    got = []
    for upto in range(start, count + 1):
        cut = trimmer.cut(encode(event(upto, "b")))
        if cut is not None:
            got.append(parse_event(cut))
    end = trimmer.cut(encode(event(count, "b", {"type": "length"})))
    assert end is not None
    assert [present(each)["meta_info"]["completion_tokens"] for each in got] == list(
        range(broken + 1, count + 1)
    )
    assert all(present(each)["meta_info"]["id"] == "a" for each in got)
    # Its worker dies between the end and [DONE]: the next one's end is no second one.
    sent.add(end)
    late = Trimmer("generate", sent.progress())
    assert late.cut(encode(event(count, "c", {"type": "length"}))) is None


@given(st.data(), st.text(max_size=30))
def test_generate_incremental(data: st.DataObject, text: str) -> None:
    def stream(parts: list[str]) -> list[dict[str, Any]]:
        return [
            {"text": part, "output_ids": [ord(c) for c in part],
             "meta_info": {"id": "a", "completion_tokens": 0,
                           "finish_reason": {"type": "stop"} if last else None}}
            for part, last in [*((part, False) for part in parts), ("", True)]
        ]  # fmt: skip

    original, replay = stream(data.draw(parts_of(text))), stream(data.draw(parts_of(text)))
    sent = Sent("generate", incremental=True)
    got = original[: data.draw(st.integers(0, len(original)))]
    for event in got:
        sent.add(encode(event))
    trimmer = Trimmer("generate", sent.progress(), incremental=True)
    for event in replay:
        cut = trimmer.cut(encode(event))
        if cut is not None:
            got = [*got, parse_event(cut)]  # type: ignore[list-item]
    assert "".join(event["text"] for event in got) == text
    assert [i for event in got for i in event["output_ids"]] == [ord(c) for c in text]
    assert sum(event["meta_info"]["finish_reason"] is not None for event in got) == 1


def test_done_and_comments_are_no_json() -> None:
    assert parse_event(b"data: [DONE]") is None
    assert parse_event(b": ping") is None
    assert split_events(b"data: 1\n\ndata: 2\n\n") == [b"data: 1", b"data: 2"]
