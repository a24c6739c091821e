"""Faults from outside on a cluster of stand-ins, beside traffic whose every answer is checked."""

import asyncio
import json
import os
import random
import signal
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp
import orjson

from tests.standin.cluster import Cluster
from tests.standin.streams import seed_of, word

PATHS = ("/v1/chat/completions", "/v1/completions", "/generate")
FAULTS = ("kill", "stop", "hang", "reset")
HANG = 2.5
"""A hang lasts this many times as long as another fault: it has to be told from a slow answer."""


@dataclass
class Checked:
    """What came of requests. `lost` ended without a whole answer, `wrong` with another text than
    the stand-ins' function says; `why` tells of some of them."""

    sent: int = 0
    good: int = 0
    lost: int = 0
    wrong: int = 0
    first_s: list[float] = field(default_factory=list)
    """From the POST to the first byte of the body, of good ones."""
    why: list[str] = field(default_factory=list)

    def told(self, what: str) -> None:
        if len(self.why) < 20:
            self.why.append(what)


class Traffic:
    """Requests of all endpoints, streamed and not, each with a prompt of its own."""

    def __init__(self, cluster: Cluster, tokens: int, seed: int, limit_s: float = 60.0) -> None:
        self._url = cluster.url
        self._tokens = tokens
        self._random = random.Random(seed)
        self._limit = aiohttp.ClientTimeout(limit_s)
        self.checked = Checked()

    async def run(
        self,
        count: int | None,
        lanes: int,
        until_s: float | None = None,
        over: asyncio.Event | None = None,
    ) -> Checked:
        """So many requests, or as many as go until then or until `over`, `lanes` at a time in a
        closed loop."""
        began = perf_counter()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=self._limit) as session:

            async def lane() -> None:
                while (
                    (count is None or self.checked.sent < count)
                    and (until_s is None or perf_counter() - began < until_s)
                    and not (over is not None and over.is_set())
                ):
                    self.checked.sent += 1
                    await self._one(session)

            await asyncio.gather(*(lane() for _ in range(lanes)))
        return self.checked

    async def _one(self, session: aiohttp.ClientSession) -> None:
        choice, checked = self._random, self.checked
        path = choice.choice(PATHS)
        prompt: Any = f"prompt {choice.getrandbits(40)}"
        stream = choice.random() < 0.75
        count = choice.randrange(max(1, self._tokens // 2), self._tokens + 1)
        if path == PATHS[0]:
            prompt = [{"role": "user", "content": prompt}]
            body = {"messages": prompt, "max_tokens": count}
        elif path == PATHS[1]:
            body = {"prompt": prompt, "max_tokens": count}
        else:
            body = {"text": prompt, "sampling_params": {"max_new_tokens": count}}
        began = perf_counter()
        raw, first = bytearray(), 0.0
        data = json.dumps({**body, "stream": stream})
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(self._url + path, data=data, headers=headers) as response:
                status = response.status
                async for part in response.content.iter_any():
                    first = first or perf_counter() - began
                    raw += part
        except (aiohttp.ClientError, TimeoutError) as error:
            checked.lost += 1
            checked.told(f"{path} {type(error).__name__} {error}")
            return
        got = _text(path, bytes(raw), stream) if status == 200 else None
        seed = seed_of(prompt)
        if got is None:
            checked.lost += 1
            checked.told(f"{path} {status} {bytes(raw[-200:])!r}")
        elif got != "".join(word(seed, i) for i in range(count)):
            checked.wrong += 1
            checked.told(f"{path} wrong: {got[-100:]!r} of {count} tokens")
        else:
            checked.good += 1
            checked.first_s.append(first)


def _text(path: str, raw: bytes, stream: bool) -> str | None:
    """The text of an answer; None of one that is not whole."""
    try:
        if not stream:
            answer = orjson.loads(raw)
            return str(answer["text"] if path == "/generate" else _piece(answer["choices"][0]))
        parts = [part for part in raw.split(b"\n\n") if part]
        if not parts or parts[-1] != b"data: [DONE]" or b'{"error"' in raw:
            return None
        events = [orjson.loads(part.removeprefix(b"data: ")) for part in parts[:-1]]
        if path == "/generate":
            finished = events[-1]["meta_info"]["finish_reason"]
            return str(events[-1]["text"]) if finished["type"] == "length" else None
        choices = [choice for event in events for choice in event["choices"]]
        if [c["finish_reason"] for c in choices if c["finish_reason"]] != ["length"]:
            return None
        return "".join(_piece(choice) for choice in choices)
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None


def _piece(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    message = choice.get("message") or choice.get("delta") or {}
    return str(message.get("content") or "")


class Storm:
    """One fault after another, each on a worker of the `victims`, until it is cancelled.

    `every_s` lies between the begins of two faults; one of them lasts `lasts_s` (a hang longer, and
    the next one waits for it), so that faults do not overlap and the others serve on. Whoever
    cancels it calls `calm` after it.
    """

    def __init__(
        self, cluster: Cluster, victims: list[str], every_s: float, lasts_s: float, seed: int
    ) -> None:
        self._cluster = cluster
        self._victims = victims
        self._every_s = every_s
        self._lasts_s = lasts_s
        self._random = random.Random(seed)
        self._stopped: set[int] = set()
        self.faults: dict[str, int] = dict.fromkeys(FAULTS, 0)

    async def run(self, faults: int | None = None) -> None:
        """So many faults, or one after another until it is cancelled."""
        turn = 0
        while faults is None or turn < faults:
            fault = FAULTS[turn % len(FAULTS)]
            victim = self._random.choice(self._victims)
            turn += 1
            await self.strike(fault, victim)
            self.faults[fault] += 1
            await asyncio.sleep(max(0.0, self._every_s - self._lasts_s))

    async def strike(self, fault: str, name: str) -> None:
        """One fault, from its begin to its end."""
        cluster = self._cluster
        worker = cluster.worker(name)
        if fault == "reset":
            await cluster.make(name, "reset")
        elif fault == "hang":
            await cluster.make(name, "silent")
            await asyncio.sleep(self._lasts_s * HANG)
            await cluster.make(name, "well")
        elif fault == "stop":
            os.kill(worker.pid, signal.SIGSTOP)
            self._stopped.add(worker.pid)
            await asyncio.sleep(self._lasts_s)
            self._continue(worker.pid)
        else:
            worker.kill()
            await asyncio.sleep(self._lasts_s / 2)
            await asyncio.to_thread(worker.start)

    def _continue(self, pid: int) -> None:
        if pid in self._stopped:
            self._stopped.discard(pid)
            os.kill(pid, signal.SIGCONT)

    async def calm(self) -> None:
        """Whatever a cancelled fault has left is mended: all run, and are well."""
        for pid in list(self._stopped):
            self._continue(pid)
        for worker in self._cluster.workers:
            if worker.process is None:
                await asyncio.to_thread(worker.start)
            await self._cluster.make(worker.name, "well")
