"""What a broken worker, or a sidecar before it, may send: frames and event lines from a seed.

Each answer ends within a fraction of a second, with the connection closed or with a whole answer:
whoever waits longer than that waits of its own accord. None of them says 500.
"""

import asyncio
import random

import orjson

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a"}]}\n\n'
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
WHOLE = JSON % (2, b"{}")
PAUSE_S = 0.02


async def answer(transport: asyncio.Transport, choice: random.Random) -> None:
    """One rude answer, in pieces with small pauses; then the connection is closed."""
    for piece in choice.choice(ANSWERS)(choice):
        if transport.is_closing():
            return
        transport.write(piece)
        await asyncio.sleep(PAUSE_S)
    if choice.random() < 0.3:
        transport.abort()
    else:
        transport.close()


def events(choice: random.Random) -> list[bytes]:
    """Lines for the event stream: some are no JSON, some no object, some of wrong types."""
    return [choice.choice(LINES) + b"\n" for _ in range(choice.randrange(3))]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _interim(choice: random.Random) -> list[bytes]:
    status = choice.choice([b"100 Continue", b"102 Processing", b"103 Early Hints", b"199 X"])
    return [b"HTTP/1.1 " + status + b"\r\nlink: x\r\n\r\n"] * choice.choice([1, 1, 2, 200]) + [
        WHOLE
    ]


def _switching(choice: random.Random) -> list[bytes]:
    return [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n", bytes(64)]


def _huge_header(choice: random.Random) -> list[bytes]:
    size = choice.choice([10_000, 100_000, 2_000_000])
    return [b"HTTP/1.1 200 OK\r\nx-big: " + b"a" * size, b"\r\ncontent-length: 2\r\n\r\n{}"]


def _many_headers(choice: random.Random) -> list[bytes]:
    lines = b"".join(b"x-%d: y\r\n" % i for i in range(choice.choice([100, 1000, 20_000])))
    return [b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 2\r\n\r\n{}"]


def _huge_event(choice: random.Random) -> list[bytes]:
    size = choice.choice([100_000, 1_000_000, 4_000_000])
    return [STREAM, chunk(b"data: " + b"a" * size), chunk(b"\n\n"), b"0\r\n\r\n"]


def _half_event(choice: random.Random) -> list[bytes]:
    return [STREAM, chunk(EVENT), chunk(EVENT[: choice.randrange(1, len(EVENT))])]


def _bad_events(choice: random.Random) -> list[bytes]:
    bad = [
        b"data: {\n\n",
        b"data: null\n\n",
        b"data: [1,2]\n\n",
        b"data: \xff\xfe\n\n",
        b": x y z\ndata: {}\n\n",
        b": 99999999999999999999\n" + EVENT,
        b'data: {"error": 7}\n\n',
        b'data: {"error": {"code": "x", "message": []}}\n\n',
        b'data: {"choices": {"0": 1}}\n\n',
        b'data: {"choices": [null]}\n\n',
        b'data: {"meta_info": {"finish_reason": {"type":"abort"}, "completion_tokens": "x"}}\n\n',
        b'data: {"meta_info": 1, "x": {"type":"abort"}}\n\n',
        b"event: x\nid: 1\nretry: 0\n\n",
        b"\n\n\n\n",
        b"data: [DONE]\n\ndata: [DONE]\n\n",
        b"data: " + b"[" * 2000 + b"\n\n",
    ]
    body = [chunk(choice.choice(bad)) for _ in range(choice.randrange(1, 6))]
    return [STREAM, *body, choice.choice([b"0\r\n\r\n", b""])]


def _no_end(choice: random.Random) -> list[bytes]:
    return [STREAM, chunk(EVENT), b"ffff\r\n" + EVENT]


def _bad_chunk(choice: random.Random) -> list[bytes]:
    size = choice.choice([b"zz", b"-1", b"", b"ffffffffffffffffff", b"5;" + b"x" * 70_000, b"0x5"])
    return [STREAM, size + b"\r\n" + EVENT + b"\r\n0\r\n\r\n"]


def _wrong_length(choice: random.Random) -> list[bytes]:
    length = choice.choice([b"1", b"5000", b"-1", b"abc", b"99999999999999999999", b"2\r\n: x"])
    return [b"HTTP/1.1 200 OK\r\ncontent-length: " + length + b'\r\n\r\n{"a":1}']


def _trailing(choice: random.Random) -> list[bytes]:
    return [WHOLE + choice.choice([b"garbage", WHOLE, b"\r\n\r\n", bytes(1000)])]


def _not_http(choice: random.Random) -> list[bytes]:
    return [choice.choice([b"\x16\x03\x01", b"hello\r\n\r\n", b"HTTP/9.9 xyz\r\n\r\n", b"\n" * 99])]


def _status(choice: random.Random) -> list[bytes]:
    status = choice.choice([b"204 X", b"304 X", b"400 X", b"404 X", b"429 X", b"999 X", b"301 X"])
    return [b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n"]


def _both(choice: random.Random) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n"
    return [head, chunk(EVENT), b"0\r\n\r\n"]


def _gzip(choice: random.Random) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08x"]


def _bad_json(choice: random.Random) -> list[bytes]:
    bodies = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"\xff",
        b'{"choices": null, "usage": 3}',
        b"[" * 2000,
    ]
    body = choice.choice(bodies)
    return [JSON % (len(body), body)]


def _nothing(choice: random.Random) -> list[bytes]:
    return []


ANSWERS = (
    _interim, _switching, _huge_header, _many_headers, _huge_event, _half_event, _bad_events,
    _bad_events, _no_end, _bad_chunk, _wrong_length, _trailing, _not_http, _status, _both, _gzip,
    _bad_json, _nothing,
)  # fmt: skip

LINES = (
    b"{", b"null", b"7", b"[]", b'"x"', b"\xff\xfe", b"{}", b'{"type": null}',
    b'{"type": ["load"]}', b'{"type": "load"}', b'{"type": "load", "dp_rank": "x"}',
    b'{"type": "load", "dp_rank": 99}', b'{"type": "load", "running": "x"}',
    b'{"type": "load", "running": 1e400}', b'{"type": "prefill_done"}',
    b'{"type": "prefill_done", "rid": ["x"]}',
    b'{"type": "prefill_done", "rid": "nobody", "prompt_tokens": "x"}', b'{"type": "kv_transfer"}',
    b'{"type": "kv_transfer", "seconds": "x", "bytes": null}', b'{"type": "steps"}',
    b'{"type": "steps", "steps": "x"}', b'{"type": "hello", "max_running_requests": "x"}',
    b"[" * 3000, orjson.dumps({"type": "x", "big": "a" * 500_000}),
)  # fmt: skip
