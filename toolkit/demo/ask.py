"""One streamed chat completion through the router, told token by token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.bounded_files import parse_json
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import aiohttp

COUNTED_WITHIN_S = 2.0


class DemoError(ToolkitError):
    """The deployment did not answer as it must."""


@dataclass(frozen=True)
class DemoAnswer:
    """`prefill`, `decode`: the workers that served it. Times in seconds."""

    text: str
    tokens: int
    ttft: float
    seconds: float
    prefill: str
    decode: str


async def ask(
    session: aiohttp.ClientSession, url: str, prompt: str, tokens: int, show: Callable[[str], None]
) -> DemoAnswer:
    """Send `prompt` to the router at `url` and pass each piece of text to `show` as it comes.

    Nothing else may be in flight: who served it is read from the workers' counters.

    Raises:
        DemoError: an error status, a broken stream, or no token.
    """
    before = await _completed(session, url)
    body = {
        "model": await _model(session, url),
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    first = 0.0
    start = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise DemoError(f"status {response.status}: {(await response.text())[:400]}")
        async for raw in response.content:
            event = _event(raw)
            if event is None:
                continue
            if "error" in event:
                raise DemoError(f"the stream ended with {event['error']}")
            usage = event.get("usage") or usage
            text = _text(event)
            if text:
                first = first or time.perf_counter()
                pieces.append(text)
                show(text)
    end = time.perf_counter()
    made = usage.get("completion_tokens", 0)
    if not pieces or not made:
        raise DemoError("the answer has no tokens")
    served = await _served(session, url, before)
    return DemoAnswer(
        text="".join(pieces),
        tokens=made,
        ttft=first - start,
        seconds=end - start,
        prefill=served.get("prefill", "?"),
        decode=served.get("decode", "?"),
    )


def _event(raw: bytes) -> dict[str, Any] | None:
    """The JSON object of one SSE line; None for blank lines, comments and `[DONE]`."""
    line = raw.strip()
    if not line.startswith(b"data:") or line == b"data: [DONE]":
        return None
    event: dict[str, Any] = parse_json(line[5:])
    return event


def _text(event: dict[str, Any]) -> str:
    """What a chunk adds to the answer; nothing for the first one (role) and the last (usage)."""
    deltas = (choice.get("delta") or {} for choice in event.get("choices", []))
    return "".join(delta.get("content") or "" for delta in deltas)


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        response.raise_for_status()
        name: str = (await response.json())["data"][0]["id"]
    return name


async def _completed(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], int]:
    """(role, name) -> requests that the worker has completed."""
    async with session.get(f"{url}/workers") as response:
        response.raise_for_status()
        rows = (await response.json())["workers"]
    totals: dict[tuple[str, str], int] = {}
    for row in rows:  # a row a DP rank
        key = (row["role"], row["name"])
        totals[key] = totals.get(key, 0) + row["completed"]
    return totals


async def _served(
    session: aiohttp.ClientSession, url: str, before: dict[tuple[str, str], int]
) -> dict[str, str]:
    """Role -> name of the worker whose counter went up.

    A prefill worker answers only after the transfer and may be counted just after the stream's
    end, so every role is waited for, within reason.
    """
    roles = {role for role, _ in before}
    deadline = time.monotonic() + COUNTED_WITHIN_S
    while True:
        after = await _completed(session, url)
        served = {role: name for (role, name), n in after.items() if n > before[role, name]}
        if roles <= served.keys() or time.monotonic() > deadline:
            return served
        await asyncio.sleep(0.02)
