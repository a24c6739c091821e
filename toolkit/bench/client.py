"""The load client: one streaming request, timed token by token.

The client shares the machine with CPU workers, so it does as little as it can for a chunk: note
the time, find `"completion_tokens":` in the bytes. JSON is parsed once a request, at its end.
(`sglang.benchmark.serving` parses every chunk, whose text grows with each token on `/generate`.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from toolkit.bench.ending import Ending, processor
from toolkit.bench.workload import Item
from toolkit.contract.headers import CLASS as CLASS_HEADER
from toolkit.contract.headers import LABEL as LABEL_HEADER

if TYPE_CHECKING:
    import aiohttp

Endpoint = Literal["generate", "chat", "completions"]
PATHS: dict[str, str] = {
    "generate": "/generate",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
USER_HEADER = "x-smg-routing-key"
_COUNT = b'"completion_tokens":'
_ABORTS = (b'"type":"abort"', b'"type": "abort"', b'"finish_reason":"abort"')


@dataclass(slots=True)
class Sample:
    """What one request did. Names and meanings are `RequestFuncOutput`'s of SGLang (seconds).

    Ours are `ttst`, until the second token was there, and `longest_gap`, the longest time between
    two arrivals of tokens: `itl` shares a gap out among the tokens that came after it at once, and
    so hides one. 0 where there is none.
    """

    success: bool = False
    start_time: float = 0.0
    latency: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    ttst: float = 0.0
    longest_gap: float = 0.0
    prompt_len: int = 0
    output_len: int = 0
    cached_tokens: int = 0
    cache_told: bool = False
    """Whether the server says cached tokens at all (chat: SGLang's --enable-cache-report)."""
    error: str = ""
    status: int = 0
    generated_text: str = ""
    output_ids: tuple[int, ...] = ()
    """Of the endpoint that tells them (`generate`)."""
    domain: str = ""


def payload(
    endpoint: Endpoint, model: str, item: Item, ignore_eos: bool, ending: Ending | None = None
) -> dict[str, Any]:
    """The request body of one item, greedy and streaming. With `ending` its length is hidden.

    ValueError: token ids for the chat endpoint, a hidden length for another than /generate.
    """
    if endpoint == "generate":
        key = "text" if isinstance(item.prompt, str) else "input_ids"
        if ending is not None:
            sampling = {"temperature": 0.0, **ending.of(item.output_tokens)}
            hidden = {"sampling_params": sampling, "custom_logit_processor": processor()}
            return {key: item.prompt, "stream": True, **hidden}
        return {
            key: item.prompt,
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": item.output_tokens,
                "ignore_eos": ignore_eos,
            },
            "stream": True,
        }
    if ending is not None:
        raise ValueError("only /generate can hide the length of an answer")
    body: dict[str, Any] = {
        "model": model,
        "temperature": 0.0,
        "max_tokens": item.output_tokens,
        "ignore_eos": ignore_eos,
        "stream": True,
        # Usage in every chunk: the token count without counting chunks.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if endpoint == "completions":
        body["prompt"] = item.prompt
    elif isinstance(item.prompt, str):
        said = item.messages or (("user", item.prompt),)
        body["messages"] = [{"role": role, "content": content} for role, content in said]
    else:
        raise ValueError("the chat endpoint needs prompts as text")
    return body


class StreamTimer:
    """Turns the raw bytes of one SSE answer into token times."""

    def __init__(self, sample: Sample, keep: bool = False) -> None:
        self.sample = sample
        self.kept: list[bytes] | None = [] if keep else None
        self.last = b""  # the last event that carried a token count
        self.done = False
        self.error = b""
        self._tail = b""
        self._last_time = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Take in what arrived at `now` (the clock of `sample.start_time`)."""
        if self.kept is not None:
            self.kept.append(data)
        if self._tail:
            data = self._tail + data
        end = data.rfind(b"\n\n")
        if end < 0:
            self._tail = data
            return
        self._tail = data[end + 2 :]
        whole = data[:end]
        if whole.endswith(b"data: [DONE]"):
            self.done = True
        at = whole.rfind(_COUNT)
        if at < 0:
            if b'"error"' in whole:
                self.error = whole
            return
        self.last = whole
        stop = at + len(_COUNT)
        count = int(whole[stop : stop + 12].lstrip().split(b",", 1)[0].split(b"}", 1)[0])
        self._tokens(count, now)
        if any(mark in whole for mark in _ABORTS):
            self.error = whole

    def _tokens(self, count: int, now: float) -> None:
        sample = self.sample
        fresh = count - sample.output_len
        if fresh <= 0:
            return
        if sample.output_len == 0:
            sample.ttft = now - sample.start_time
        else:
            gap = now - self._last_time
            sample.itl.extend([gap / fresh] * fresh)
            sample.longest_gap = max(sample.longest_gap, gap)
        if sample.output_len < 2 <= count:
            sample.ttst = now - sample.start_time
        sample.output_len = count
        self._last_time = now

    def said(self) -> str:
        """The whole answer of a chat, of a timer that keeps it: its text comes in pieces."""
        import orjson

        found = []
        for line in b"".join(self.kept or ()).split(b"\n"):
            if line.startswith(b"data: {"):
                for choice in orjson.loads(line[6:]).get("choices") or ():
                    found.append((choice.get("delta") or {}).get("content") or "")
        return "".join(found)

    def final(self) -> dict[str, Any]:
        """The last event with a token count, parsed; {} when there was none."""
        import orjson

        for line in reversed(self.last.split(b"\n")):
            if line.startswith(b"data: {") and _COUNT in line:
                parsed: dict[str, Any] = orjson.loads(line[6:])
                return parsed
        return {}


async def send(
    session: aiohttp.ClientSession,
    url: str,
    endpoint: Endpoint,
    body: dict[str, Any],
    domain: str = "",
    label: str = "",
    user: str = "",
    keep: bool = False,
    request_class: str = "",
) -> Sample:
    """Send one request and time its answer. Never raises: a failure is in `Sample.error`.

    `label` tells the router what the request is, for the policy `label_oracle`, `user` whose,
    `request_class` its class.
    `keep`: a chat's answer is wanted in `generated_text`, which costs the client some CPU.
    """
    import aiohttp
    import orjson

    sample = Sample(start_time=time.perf_counter(), domain=domain)
    timer = StreamTimer(sample, keep)
    raw = orjson.dumps(body)
    headers = {"Content-Type": "application/json"}
    if label:
        headers[LABEL_HEADER] = label
    if user:
        headers[USER_HEADER] = user
    if request_class:
        headers[CLASS_HEADER] = request_class
    try:
        async with session.post(url + PATHS[endpoint], data=raw, headers=headers) as response:
            sample.status = response.status
            if response.status != 200:
                text = (await response.text())[:300]
                sample.error = f"HTTP {response.status}: {text}"
                return sample
            async for data in response.content.iter_any():
                timer.feed(data, time.perf_counter())
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        sample.error = f"{type(error).__name__}: {error}"
        return sample
    finally:
        sample.latency = time.perf_counter() - sample.start_time
    _finish(sample, timer)
    return sample


def _finish(sample: Sample, timer: StreamTimer) -> None:
    if timer.error:
        sample.error = "aborted in the stream: " + timer.error[-300:].decode(errors="replace")
    elif not timer.done:
        sample.error = f"the stream broke off after {sample.output_len} tokens"
    elif sample.output_len == 0:
        sample.error = "the answer has no tokens"
    if sample.error:
        return
    final = timer.final()
    usage = final.get("meta_info") or final.get("usage") or {}
    sample.prompt_len = int(usage.get("prompt_tokens") or 0)
    details = usage.get("prompt_tokens_details") or {}
    cached = [each.get("cached_tokens") for each in (usage, details)]
    sample.cache_told = any(each is not None for each in cached)
    sample.cached_tokens = int(next(filter(None, cached), 0))
    sample.generated_text = timer.said() if timer.kept is not None else str(final.get("text") or "")
    sample.output_ids = tuple(final.get("output_ids") or ())
    sample.success = True
