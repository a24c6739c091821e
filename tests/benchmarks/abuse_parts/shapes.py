"""Shapes of frames that no ordinary client sends, for `abuse`.

A frame with `answers` is whole as far as it goes: a server answers or closes. Without, it is
unfinished, and its client goes away. `refuse`: where the message ends can be read in two ways
(RFC 9112, 6.3), or its framing is unknown: a 200 to it is a way to smuggle requests past a proxy.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.abuse_parts.http import head

PATH = "/v1/completions"
BODY = b'{"prompt": "hello", "max_tokens": 2}'
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
INNER = head("/health", method="GET")


@dataclass
class Frame:
    """`pieces` are written one by one; a number is a pause in seconds."""

    name: str
    pieces: list[bytes | float]
    answers: int = 1
    refuse: bool = False


def whole(*lines: str, body: bytes = BODY) -> list[bytes | float]:
    return [head(PATH, *lines) + body]


def two_framings(choice: random.Random) -> Frame:
    pieces = choice.choice(
        [
            whole(LENGTH, CHUNKED, body=CHUNKS + INNER),
            whole(CHUNKED, "Content-Length: 4", body=CHUNKS),
            whole(LENGTH, "Content-Length: 3"),
            whole(f"Content-Length: {len(BODY)}, {len(BODY)}"),
            whole("Content-Length: 3", LENGTH),
            whole(CHUNKED, CHUNKED, body=CHUNKS),
        ]
    )
    return Frame("two framings", pieces, refuse=True)


def encodings(choice: random.Random) -> Frame:
    value = choice.choice(
        ["gzip, chunked", "gzip", "identity", "chunked, gzip", "xchunked", "chunked;q=1",
         "CHUNKED x", "chunked, chunked", "\x0bchunked", "chun\tked", '"chunked"', "cow"]
    )  # fmt: skip
    return Frame(f"TE {value!r}", whole(f"Transfer-Encoding: {value}", body=CHUNKS), refuse=True)


def names(choice: random.Random) -> Frame:
    """Names of the two headers, a little off."""
    line = choice.choice(
        ["Transfer-Encoding : chunked", " Transfer-Encoding: chunked", "Transfer_Encoding: chunked",
         "Transfer-Encoding\t: chunked", "Transfer-Encoding\x00: chunked",
         "X: y\rTransfer-Encoding: chunked", "X: y\n\nTransfer-Encoding: chunked",
         "Content-Length : 3", "Content-Length\x0c: 3", "Content-Length: 3\x00"]
    )  # fmt: skip
    return Frame(f"name {line!r}", whole(line, LENGTH))


def lengths(choice: random.Random) -> Frame:
    value = choice.choice(
        ["-1", "+36", "0x24", "36.0", "3 6", "٣٦", "", "36abc", "1e2", "99999999999999999999999",
         "18446744073709551652", "036"]
    )  # fmt: skip
    return Frame(f"length {value!r}", whole(f"Content-Length: {value}"), refuse=value != "036")


def chunk_sizes(choice: random.Random) -> Frame:
    size = choice.choice(
        [b"zz", b"-1", b"", b"ffffffffffffffff", b"1" * 500, b"0x24", b"24 ", b" 24", b"24;a=b",
         b"+24", b"24;" + b"x" * 20_000, b"24\x00", b"2_4", b"24;\n"]
    )  # fmt: skip
    body = size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
    if size == b"f" * 16:  # more is to come
        return Frame("chunk of 2**64", [*whole(CHUNKED, body=body), 0.05], answers=0)
    return Frame(f"chunk size {size[:30]!r}", whole(CHUNKED, body=body))


def chunk_ends(choice: random.Random) -> Frame:
    end = choice.choice([b"\n", b"", b"\r", b"xx", b"\r\r\n", b"\n\r\n"])
    body = b"%x" % len(BODY) + b"\r\n" + BODY + end + b"0\r\n\r\n" + b"0\r\n\r\n"
    return Frame(f"chunk end {end!r}", whole(CHUNKED, body=body))


def trailers(choice: random.Random) -> Frame:
    trailer = choice.choice(
        [b"X: y\r\n", b"Content-Length: 3\r\n", b"a" * 70_000 + b": b\r\n", b"X: y\r\n" * 3000,
         b"bad\r\n"]
    )  # fmt: skip
    body = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY) + trailer + b"\r\n"
    return Frame(f"trailer {trailer[:10]!r}", whole(CHUNKED, body=body))


def floods(choice: random.Random) -> Frame:
    lines = choice.choice(
        [
            [f"X-{i}: y" for i in range(choice.choice([200, 5000, 30_000]))],
            ["X: " + "a" * choice.choice([9_000, 70_000, 1_000_000])],
            ["a" * choice.choice([9_000, 70_000]) + ": b"],
            ["X: y"] * 5000,
            ["Cookie: " + "; ".join(f"a{i}=b" for i in range(2000))],
        ]
    )
    return Frame("header flood", whole(LENGTH, *lines))


def folds(choice: random.Random) -> Frame:
    line = choice.choice(
        ["X: y\r\n z", "X: y\r\n\tz", "X:\r\n chunked", "Transfer-Encoding:\r\n chunked"]
    )
    return Frame("obs-fold", whole(line, LENGTH))


def endings(choice: random.Random) -> Frame:
    """Lines that end otherwise than with CRLF."""
    plain = head(PATH, LENGTH)
    changed = choice.choice(
        [plain.replace(b"\r\n", b"\n"), plain.replace(b"\r\n", b"\r"), plain.replace(b"\r\n",
         b"\r\r\n"), plain[:-4] + b"\n\n", b"\r\n\r\n" + plain, b"\n" * 200 + plain, b" " + plain]
    )  # fmt: skip
    unfinished = changed.endswith(b"\r") or b"\r\r\n" in changed
    return Frame("line ends", [changed + BODY, 0.05], answers=0 if unfinished else 1)


def first_lines(choice: random.Random) -> Frame:
    line = choice.choice(
        [b"GET /\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/completions\r\n\r\n",
         b"POST  /v1/completions  HTTP/1.1", b"POST /v1/completions HTTP/9.9",
         b"POST /v1/completions HTTP/1.10", b"POST /v1/completions http/1.1",
         b"post /v1/completions HTTP/1.1", b"P\x00ST /v1/completions HTTP/1.1", b"PRI * HTTP/2.0",
         b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"TRACE /health HTTP/1.1",
         b"GET /health HTTP/0.9", b"GET /health HTTP/1.0",
         b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /" + b"a" * 100_000 + b" HTTP/1.1",
         b"FOO /v1/completions HTTP/1.1", b"PUT /v1/completions HTTP/1.1"]
    )  # fmt: skip
    return Frame(f"first line {line[:40]!r}", [line + b"\r\nHost: a\r\n\r\n"])


def targets(choice: random.Random) -> Frame:
    target = choice.choice(
        ["http://127.0.0.1/v1/completions", "http://[::1/v1/completions",
         "http://a:99999/v1/completions", "//v1/completions", "/v1/completions?a=%zz",
         "/v1/completions#x", "/v1//completions", "/v1/./completions", "/%2e%2e/etc/passwd",
         "/v1/completions%00", "/v1/%63ompletions", "\\v1\\completions", "?", "*", "é",
         "/v1/completions\x7f", "/v1/models/../../admin", "/v1/models/%ff%fe",
         "http://user:pw@h/v1/completions", "/v1/models/a b", "/v1/models/a%0d%0aX:y",
         "http://[v1.x]/health", "//", "http:///", "/health;x=y"]
    )  # fmt: skip
    method = choice.choice(["POST", "GET"])
    return Frame(f"target {target!r} {method}", [head(target, LENGTH, method=method) + BODY])


def hosts(choice: random.Random) -> Frame:
    lines = choice.choice(
        [["Host: b"], ["Host: b", "Host: c"], ["host:"], ["Host: a b"], ["Host: [::1"],
         ["Host: a:b:c"], ["Host: " + "a" * 5000], ["Host: \x00"], ["Host: é"]]
    )  # fmt: skip
    return Frame("hosts", whole(*lines, LENGTH))


def no_host(choice: random.Random) -> Frame:
    return Frame("no host", [f"POST {PATH} HTTP/1.1\r\n{LENGTH}\r\n\r\n".encode() + BODY])


def pipelined(choice: random.Random) -> Frame:
    count = choice.choice([2, 5, 16])
    one = head(PATH, LENGTH) + BODY
    return Frame("pipeline", [one * count], answers=count)


def pipelined_garbage(choice: random.Random) -> Frame:
    garbage = choice.choice([b"\r\n\r\n", b"\x00" * 50, b"GET", b"POST /v1", CHUNKS, b"a" * 9000])
    return Frame("trailing garbage", [head(PATH, LENGTH) + BODY + garbage])


def pipelined_gone(choice: random.Random) -> Frame:
    """Many requests, and nobody to read their answers."""
    return Frame("pipeline, gone", [(head(PATH, LENGTH) + BODY) * 20, 0.005], answers=0)


def early_close(choice: random.Random) -> Frame:
    raw = choice.choice([head(PATH, LENGTH) + BODY, head(PATH, CHUNKED) + CHUNKS])
    return Frame("early close", [raw[: choice.randrange(len(raw))], 0.01], answers=0)


def gone_in_stream(choice: random.Random) -> Frame:
    body = b'{"prompt": "hello", "stream": true, "max_tokens": 24}'
    raw = head(PATH, f"Content-Length: {len(body)}") + body
    return Frame("gone in a stream", [raw, choice.choice([0.0, 0.001, 0.01])], answers=0)


def gzipped(choice: random.Random) -> Frame:
    encoding = choice.choice(
        ["gzip", "deflate", "br", "zstd", "gzip, deflate", "x-gzip", "compress"]
    )
    return Frame(f"bad {encoding}", whole(f"Content-Encoding: {encoding}", LENGTH))


def expectations(choice: random.Random) -> Frame:
    value = choice.choice(["100-continue", "200-ok", "", "100-continue, 100-continue", "x" * 3000])
    return Frame(f"expect {value[:20]!r}", whole(f"Expect: {value}", LENGTH))


def connections(choice: random.Random) -> Frame:
    value = choice.choice(
        ["close", "Upgrade", "keep-alive, close", "Content-Length", "x, , ,", "TE"]
    )
    lines = [f"Connection: {value}", "Upgrade: " + choice.choice(["h2c", "websocket", ""])]
    return Frame(f"connection {value!r}", whole(LENGTH, *lines))


def bytewise(choice: random.Random) -> Frame:
    raw = head(PATH, LENGTH) + BODY
    pieces: list[bytes | float] = []
    for at in range(0, len(raw), 5):
        pieces += [raw[at : at + 5], 0.0]
    return Frame("bit by bit", pieces)


def flipped(choice: random.Random) -> Frame:
    """Random bytes of a good frame changed: whether it is whole afterwards, nobody knows."""
    raw = bytearray(choice.choice([head(PATH, LENGTH) + BODY, head(PATH, CHUNKED) + CHUNKS]))
    for _ in range(choice.choice([1, 2, 8])):
        raw[choice.randrange(len(raw))] = choice.choice([choice.randrange(256), 0, 10, 13, 32, 58])
    return Frame("flipped bytes", [bytes(raw), 0.03], answers=0)


def cut(choice: random.Random) -> Frame:
    """A piece of a good frame left out or doubled."""
    raw = choice.choice([head(PATH, LENGTH) + BODY, head(PATH, CHUNKED) + CHUNKS])
    first, second = sorted(choice.randrange(len(raw)) for _ in range(2))
    changed = choice.choice([raw[:first] + raw[second:], raw[:second] + raw[first:]])
    return Frame("cut or doubled", [changed, 0.03], answers=0)


SHAPES: tuple[Callable[[random.Random], Frame], ...] = (
    two_framings, encodings, names, lengths, chunk_sizes, chunk_ends, trailers, floods, folds,
    endings, first_lines, targets, hosts, no_host, pipelined, pipelined_garbage, pipelined_gone,
    early_close, gone_in_stream, gzipped, expectations, connections, bytewise, flipped, cut,
    targets, flipped, cut,
)  # fmt: skip
