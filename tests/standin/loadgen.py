"""A cheap closed-loop SSE client: raw uvloop protocol, `python -m tests.standin.loadgen ...`.

Prints one JSON object: {"requests", "chunks", "seconds", "first_ms": [...], "errors"}. A chunk is
an SSE event as the client sees it; `first_ms` is from the POST's write to the first body byte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from time import perf_counter

import httptools
import uvloop


class Client(asyncio.Protocol):
    """One connection, one request after another until the shared budget is spent."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.parser = httptools.HttpResponseParser(self)
        self.sent_at = 0.0
        self.first = False
        self.finished = False
        self.good = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.next()

    def next(self) -> None:
        if self.run.left <= 0:
            self.transport.close()
            return
        self.run.left -= 1
        self.first = True
        self.finished = False
        self.good = False
        self.parser = httptools.HttpResponseParser(self)
        self.sent_at = perf_counter()
        self.transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        self.run.reads += 1
        self.parser.feed_data(data)
        if self.finished:
            self.run.done += 1
            self.run.errors += not self.good or self.parser.get_status_code() != 200
            self.next()

    def on_body(self, body: bytes) -> None:
        if self.first:
            self.first = False
            self.run.first.append((perf_counter() - self.sent_at) * 1e3)
        self.run.chunks += body.count(b"data: ")
        if body.endswith(b"[DONE]\n\n"):
            self.good = True

    def on_message_complete(self) -> None:
        self.finished = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.run.left > 0 or not self.finished:
            self.run.errors += 1
        self.run.open -= 1
        if self.run.open == 0:
            self.run.end.set_result(None)


class Run:
    """What the connections share."""

    def __init__(self, request: bytes, left: int, open_: int) -> None:
        self.request = request
        self.left = left
        self.open = open_
        self.done = self.chunks = self.errors = self.reads = 0
        self.first: list[float] = []
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def drive(args: argparse.Namespace) -> Run:
    body = json.dumps(
        {
            "model": "default",
            "messages": [{"role": "user", "content": "word " * args.words}],
            "max_completion_tokens": args.tokens,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{args.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    run = Run(head.encode() + body, args.requests, args.concurrency)
    loop = asyncio.get_running_loop()
    for _ in range(args.concurrency):
        await loop.create_connection(lambda: Client(run), "127.0.0.1", args.port)
    await run.end
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--words", type=int, default=40)
    args = parser.parse_args()
    begin = perf_counter()
    run = uvloop.run(drive(args))
    result = {
        "requests": run.done,
        "chunks": run.chunks,
        "reads": run.reads,
        "seconds": perf_counter() - begin,
        "first_ms": run.first,
        "errors": run.errors,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
