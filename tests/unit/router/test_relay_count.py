"""Whoever wants to know how many tokens came on a stream is told of each of them once."""

import pytest

from toolkit.router.relay import Relay
from toolkit.router.splitting import parse
from toolkit.router.upstream import Call


class Nowhere:
    def write(self, events: bytes) -> None:
        pass

    def join(self, relay: Relay) -> None:
        pass


def event(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n' % text.encode()


FIRST = b": 11 12\n" + event("ab")
SECOND = b": 13\n" + event("c")
NO_IDS = event("")


@pytest.mark.parametrize("cuts", [(), (5,), (10, 40), (len(FIRST),), (len(FIRST) + 3,)])
@pytest.mark.parametrize("hold", [False, True])
async def test_tokens_are_counted_as_they_come(cuts: tuple[int, ...], hold: bool) -> None:
    sub_request = parse("/v1/completions", b'{"prompt":"a","stream":true}').sub_requests[0]
    relay = Relay(sub_request, Nowhere())
    told: list[int] = []
    relay.begin(Call("w", b"", None), hold, told.append)  # type: ignore[arg-type]
    data = FIRST + SECOND + NO_IDS
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        relay.feed(data[start:end])
    if hold:
        assert told == []
        relay.release(None)
    assert sum(told) == relay.tokens == 3
    # It goes on elsewhere, from the start: only what is new counts.
    sub_request.resume_ids = [11, 12, 13]
    relay.begin(Call("w", b"", None), False, told.append)  # type: ignore[arg-type]
    relay.feed(FIRST + b": 13 14\n" + event("cd"))
    relay.feed(b": 15\n" + event("e"))
    assert sum(told) == relay.tokens == 5
