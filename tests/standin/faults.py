"""How a stand-in worker can be sick, switched at run time: POST /standin/mode with a name as body.

- `500`, `503`, `429`: every generation is answered so; `503 NAME: VALUE` with that header.
- `silent`: generations are taken and shown as running, and nothing is answered; events flow.
- `half`: half of a stream's tokens, then silence; an answer that does not stream does not come.
- `inside`: every generation is answered 200 with an error in it; `inside STATUS`: of that status.
- `abort`: every generation is answered 200 and ends as aborted, without a token.
- `no_kv PORT`: a decode gets no KV of the prefill that has this port, and says so after a moment.
- `1xx`: two interim answers (100, 103) come before the answer.
- `html`: every generation is answered 502 with a page, as by a gateway in between.
- `stand`: nothing is computed, as by a scheduler that hangs; heartbeats say so.
- `rude`: raw frames that no server should send (`tests.standin.rude`), on the event stream too.
- `well`: as ever. What was silent goes on, unless its client has gone.
- `reset` is no mode: it resets (RST) all other connections of the worker, once.
- `reborn` neither: it is another process from now on, and its routers have to ask anew who it is;
  what it was asked for before is left as it is, as on a machine that is gone.
- `babble N TEXT` neither: it publishes N events that are none, each TEXT.
- `hold SECONDS` neither: the loop does nothing for so long, while a thread goes on with the event
  streams, as the event thread of a real worker does; `hold SECONDS mute` without the thread.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.standin import rude
from toolkit.contract import events

if TYPE_CHECKING:
    from tests.standin.worker import Protocol, Server

MODES = (
    "well", "500", "503", "429", "silent", "half", "1xx", "rude", "html", "stand", "inside",
    "abort", "no_kv",
)  # fmt: skip
LOST_KV = "Decode transfer failed for request rank=0: KVTransferError"
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
)


class Faults:
    """One worker's sickness. `posts` counts the generations that it was asked for."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.header = ""
        self.posts = 0
        self._random = random.Random(17)
        self._well = asyncio.Event()

    def ask(self, name: str, server: Server, asking: Protocol) -> bool:
        """Take a mode, or reset connections. False when the name is none of them."""
        if name == "reset":
            for protocol in server.connections - {asking}:
                _reset(protocol)
            return True
        if name == "reborn":
            server.boot = f"{server.boot}+"
            for subscriber in list(server.subscribers):
                subscriber.transport.close()
            return True
        if name.startswith("babble "):
            _, count, text = name.split(" ", 2)
            for subscriber in list(server.subscribers):
                subscriber.chunk((text.encode() + b"\n") * int(count))
            return True
        if name.startswith("hold "):
            _, seconds, *mute = name.split()
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, _hold, float(seconds), [] if mute else list(server.subscribers))
            return True
        name, _, self.header = name.partition(" ")
        if name not in MODES:
            return False
        self.mode = name
        if name == "well":
            self._well.set()
            self._well = asyncio.Event()
        return True

    async def spoil(self, protocol: Protocol, server: Server, body: dict[str, Any]) -> bool:
        """Answer a generation as the mode says. False when it is to be answered as ever."""
        if self.mode == "no_kv":
            if body.get("bootstrap_port") != int(self.header):
                return False
            await asyncio.sleep(0.02)
            protocol.answer_wrong(500, LOST_KV, body)
            return True
        if self.mode == "inside":
            protocol.answer_wrong(int(self.header or "500"), "sick, as asked", body)
            return True
        if self.mode == "abort":
            protocol.answer_nothing(body)
            return True
        if self.mode == "well" or self.mode == "half":
            return False
        if self.mode == "1xx":
            protocol.transport.write(INTERIM)
            return False
        if self.mode == "silent":
            await self.silence()
            return False
        if self.mode == "stand":
            await self.stand()
            return False
        if self.mode == "rude":
            for line in rude.events(self._random):
                for subscriber in list(server.subscribers):
                    subscriber.chunk(line)
            await rude.answer(protocol.transport, self._random)
            return True
        if self.mode == "html":
            page = b"<html>Bad Gateway</html>"
            protocol.transport.write(
                b"HTTP/1.1 502 X\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b"
                % (len(page), page)
            )
            return True
        more = f"{self.header}\r\n" if self.header else ""
        protocol.json({"object": "error", "message": "sick, as asked"}, int(self.mode), more)
        return True

    async def silence(self) -> None:
        """Until the worker is made well; a client that goes away, or an abort, cancels it."""
        await self._well.wait()

    async def stand(self) -> None:
        """While nothing is computed."""
        while self.mode == "stand":
            await self._well.wait()

    def stops_at(self, count: int) -> int | None:
        """The token of `count` before which a stream falls silent; None when it does not."""
        return count // 2 if self.mode == "half" else None


def _reset(protocol: Protocol) -> None:
    taken = protocol.transport.get_extra_info("socket")
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    protocol.transport.abort()


def _hold(seconds: float, subscribers: list[Protocol]) -> None:
    """Block this loop. Who listens to events hears of it, past the loop."""
    begin = time.monotonic()
    own = [protocol.transport.get_extra_info("socket").fileno() for protocol in subscribers]

    def ping() -> None:
        while (held := time.monotonic() - begin) < seconds:
            line = events.encode(events.Ping(held_up=held))
            for number in own:
                os.write(number, b"%x\r\n%b\r\n" % (len(line), line))
            time.sleep(0.1)

    thread = threading.Thread(target=ping)
    thread.start()
    while time.monotonic() - begin < seconds:
        time.sleep(0.05)
    thread.join()
    for protocol in subscribers:
        protocol.chunk(events.encode(events.Ping()))
