"""A prefill's first token goes out at once; what decode repeats of it does not."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.router.attempt.early import Early
from toolkit.router.relay import Relay
from toolkit.router.request import Endpoint, SubRequest
from toolkit.router.splitting import parse
from toolkit.router.upstream import Call

RID = "0123456789abcdef"
PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/generate",
}
BODIES: dict[Endpoint, str] = {
    "chat": '"messages":[{"role":"user","content":"a"}]',
    "completions": '"prompt":"a"',
    "generate": '"text":"a"',
}
WORDS = ["Ä ", "b", "ccc", " d", ""]


class Out:
    """What the client got."""

    def __init__(self) -> None:
        self.got = b""

    def write(self, events: bytes) -> None:
        self.got += events

    def join(self, relay: Relay) -> None:
        pass

    def read(self) -> list[Any]:
        parts = [part for part in self.got.split(b"\n\n") if part]
        assert all(part.startswith(b"data: ") for part in parts), parts
        return [json.loads(part[6:]) for part in parts if part != b"data: [DONE]"]


def sub_request_of(endpoint: Endpoint) -> SubRequest:
    body = f'{{{BODIES[endpoint]},"stream":true,"rid":"mine"}}'
    return parse(PATHS[endpoint], body.encode()).sub_requests[0]


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def stream(
    endpoint: Endpoint, groups: list[list[int]], created: int = 1, finish: str | None = "stop"
) -> list[bytes]:
    """A worker's messages for tokens in groups: token i is WORDS[i], its id 10 + i."""
    said, ids, unsaid = [], 0, []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        ids += len(group)
        unsaid += group
        comment = b": %b\n" % " ".join(str(10 + i) for i in unsaid).encode()
        text = "".join(WORDS[i] for i in group)
        base = {"id": RID, "created": created}
        ends = finish if last else None
        if endpoint == "generate":
            meta = {"id": RID, "completion_tokens": ids, "finish_reason": ends}
            whole = "".join(WORDS[i] for each in groups[: number + 1] for i in each)
            said.append(comment + sse({"text": whole, "meta_info": meta}))
        elif endpoint == "completions":
            choice = {"index": 0, "text": text, "finish_reason": ends}
            said.append(comment + sse(base | {"choices": [choice]}))
        else:
            deltas: list[dict[str, Any]] = [] if number else [{"role": "assistant", "content": ""}]
            deltas += [{"content": text}] if text else []
            choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
            choices += [{"index": 0, "delta": {}, "finish_reason": ends}] if ends else []
            if not choices:
                continue  # its ids go with the next message
            chunks = [sse(base | {"choices": [choice]}) for choice in choices]
            said += [comment + chunks[0], *chunks[1:]]
        unsaid = []
    return [*said, b"data: [DONE]\n\n"] if finish else said


def prefill(endpoint: Endpoint, held: bool = False, created: int = 1) -> list[bytes]:
    """Its first token at once, and again at its end."""
    first = [] if held else stream(endpoint, [[0]], created, finish=None)
    # Only the end of a chat's stream, or of a completion's, holds what is new.
    end = stream(endpoint, [[0]], created, finish="length")
    end = [end[0].partition(b"\n")[2], *end[1:]]
    return [*first, b": last\n" + end[0], *end[1:]]


def read(endpoint: Endpoint, events: list[Any]) -> dict[str, Any]:
    """What a client puts together, and how the stream was cut."""
    if endpoint == "generate":
        counts = [event["meta_info"]["completion_tokens"] for event in events]
        assert counts == sorted(set(counts))
        ends = [e["meta_info"]["finish_reason"] for e in events if e["meta_info"]["finish_reason"]]
        return {"text": events[-1]["text"], "ends": ends}
    choices = [choice for event in events for choice in event["choices"]]
    ends = [c["finish_reason"] for c in choices if c.get("finish_reason")]
    if endpoint == "completions":
        return {"text": "".join(c["text"] for c in choices), "ends": ends}
    roles = sum(bool(c["delta"].get("role")) for c in choices)
    text = "".join(c["delta"].get("content") or "" for c in choices)
    return {"text": text, "ends": ends, "roles": roles}


def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    points = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


@pytest.mark.parametrize("endpoint", PATHS)
@given(data=st.data())
def test_however_it_comes_nothing_is_lost_or_doubled(
    endpoint: Endpoint, data: st.DataObject
) -> None:
    async def check() -> None:
        sub_request, out, told = sub_request_of(endpoint), Out(), []
        relay = Relay(sub_request, out)
        early = Early(sub_request, relay, RID, lambda: told.append(True))
        held = data.draw(st.booleans())
        first = data.draw(st.integers(1, 5), label="tokens in decode's first answer")
        rest = [[i] for i in range(first, 5)]
        counted: list[int] = []
        decode = stream(endpoint, [list(range(first)), *rest], created=2)
        theirs = pieces(data.draw, b"".join(prefill(endpoint, held)))  # type: ignore[arg-type]
        ours = pieces(data.draw, b"".join(decode))  # type: ignore[arg-type]
        begins = data.draw(st.integers(0, len(theirs)))
        mixed = data.draw(st.lists(st.booleans(), min_size=20, max_size=20))
        while theirs or ours:
            if begins == 0:
                call = Call("d", (), None)
                relay.begin(call, False, counted.append, (RID, sub_request.rid))
            prefills = theirs and (begins > 0 or not ours or mixed.pop())
            begins -= 1
            if prefills:
                early.feed(theirs.pop(0))
            elif begins < 0:
                relay.feed(ours.pop(0))
        assert relay.failure is None and early.failure is None
        got = out.read()
        assert read(endpoint, got) == {
            "text": "".join(WORDS), "ends": ["stop"], **({"roles": 1} if endpoint == "chat" else {})
        }  # fmt: skip
        names = {e["meta_info"]["id"] if endpoint == "generate" else e["id"] for e in got}
        assert names == {"mine"}
        if endpoint == "completions":
            assert len({event["created"] for event in got}) == 1
        assert relay.ids.split() == [b"%d" % (10 + i) for i in range(5)]
        assert sum(counted) == 5
        assert relay.ended
        assert not (held and told)

    asyncio.run(check())


@pytest.mark.parametrize("endpoint", PATHS)
async def test_behind_the_overlap_bytes_pass_raw(endpoint: Endpoint, monkeypatch: Any) -> None:
    sub_request, out = sub_request_of(endpoint), Out()
    relay = Relay(sub_request, out)
    early = Early(sub_request, relay, RID)
    for message in prefill(endpoint):
        early.feed(message)
    relay.begin(Call("d", (), None), False, None, (RID, sub_request.rid))
    messages = stream(endpoint, [[0], [1], [2], [3], [4]])
    repeats = 2 if endpoint == "chat" else 1
    for message in messages[:repeats]:
        relay.feed(message)
    before = out.got
    monkeypatch.setattr(relay, "_feed_slow", lambda data: pytest.fail("parsed"))
    for message in messages[repeats:]:
        relay.feed(message)
    fresh = [m.partition(b"\n")[2] if m[:2] == b": " else m for m in messages[repeats:]]
    assert out.got == before + b"".join(fresh).replace(RID.encode(), b"mine")


@pytest.mark.parametrize("endpoint", PATHS)
async def test_decodes_first_token_goes_first_if_it_is_first(endpoint: Endpoint) -> None:
    sub_request, out = sub_request_of(endpoint), Out()
    relay = Relay(sub_request, out)
    early = Early(sub_request, relay, RID, lambda: pytest.fail("told"))
    relay.begin(Call("d", (), None), False, None, (RID, sub_request.rid))
    messages = stream(endpoint, [[0], [1], [2], [3], [4]])
    relay.feed(messages[0])
    early.feed(b"".join(prefill(endpoint)))
    relay.feed(b"".join(messages[1:]))
    assert read(endpoint, out.read())["text"] == "".join(WORDS)


@pytest.mark.parametrize("endpoint", PATHS)
async def test_another_first_token_than_the_clients_is_not_gone_on_with(endpoint: Endpoint) -> None:
    sub_request, out = sub_request_of(endpoint), Out()
    relay = Relay(sub_request, out)
    Early(sub_request, relay, RID).feed(b"".join(prefill(endpoint)))
    before, call = out.got, Call("d", (), None)
    relay.begin(call, False, None, (RID, sub_request.rid))
    relay.feed(b"".join(stream(endpoint, [[1], [2]])))
    assert call.failed and call.kind == "lost"
    assert out.got == before
    assert relay.ids == b" 10"  # what the next attempt brings along


async def test_no_id_no_first_token() -> None:
    """Of a worker that does not say what it is, nothing is taken."""
    sub_request, out = sub_request_of("completions"), Out()
    early = Early(sub_request, Relay(sub_request, out), RID, lambda: pytest.fail("told"))
    early.feed(b"".join(prefill("completions")).replace(b": 10\n", b""))
    assert out.got == b""


@pytest.mark.parametrize("endpoint", PATHS)
async def test_a_text_that_is_not_there_yet_is_not_taken_from_the_end(endpoint: Endpoint) -> None:
    """Half a character: a chat then has its role alone, and the end would have a replacement."""
    sub_request, out = sub_request_of(endpoint), Out()
    early = Early(sub_request, Relay(sub_request, out), RID, lambda: pytest.fail("told"))
    if endpoint == "chat":
        role, end = stream(endpoint, [[0]], finish=None)
    else:
        role = b": 10\n" + sse({"id": RID, "choices": [{"index": 0, "text": ""}]})
        end = sse({"id": RID, "choices": [{"index": 0, "text": "\ufffd"}]})
    early.feed(role)
    early.feed(b": last\n" + end)
    assert out.got == b""


async def test_what_a_stream_says_went_wrong() -> None:
    sub_request, out = sub_request_of("chat"), Out()
    early = Early(sub_request, Relay(sub_request, out), RID)
    error = {"message": "no", "type": "BAD_REQUEST", "code": 400}
    early.feed(b": last\n" + sse({"error": error}) + b"data: [DONE]\n\n")
    assert early.failure is not None
    assert (early.failure.status, early.failure.message) == (400, "no")
    assert out.got == b""
