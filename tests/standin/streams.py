"""What a stand-in worker answers: SGLang's wire formats around a fixed function of the prompt."""

import time
from typing import Any

import orjson


def word(seed: int, index: int) -> str:
    """The text of output token `index`; it depends on the prompt and on the index only."""
    return f" w{(seed * 31 + index * 7) % 9973}"


HALF = "\ufffd"


def token_id(seed: int, index: int) -> int:
    return (seed * 31 + index * 7) % 9973


def seed_of(prompt: Any) -> int:
    return sum(orjson.dumps(prompt)) % 1009


class Chat:
    """/v1/chat/completions, chunked as SGLang 0.5.21 does it."""

    def __init__(self, body: dict[str, Any], rid: str, seed: int) -> None:
        self.base = {
            "id": rid,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.get("model", "default"),
        }
        self.seed = seed
        self.usage_wanted = (body.get("stream_options") or {}).get("include_usage")
        self.head = self.event({"role": "assistant", "content": "", "reasoning_content": None})

    def event(self, delta: Any, finish: str | None = None) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": None,
        }
        return b"data: " + orjson.dumps({**self.base, "choices": [choice]}) + b"\n\n"

    def text(self, first: int, upto: int) -> str:
        return "".join(word(self.seed, i) for i in range(first, upto))

    def delta(self, first: int, upto: int) -> bytes:
        return self.event({"content": self.text(first, upto), "reasoning_content": None})

    def usage(self, count: int) -> dict[str, int]:
        return {
            "prompt_tokens": 1,
            "completion_tokens": count,
            "total_tokens": 1 + count,
            "reasoning_tokens": 0,
        }

    def tail(self, count: int) -> list[bytes]:
        events = [self.event({"reasoning_content": None}, "length")]
        if self.usage_wanted:
            usage = {**self.base, "choices": [], "usage": self.usage(count)}
            events.append(b"data: " + orjson.dumps(usage) + b"\n\n")
        return events

    def aborted(self, first: int, upto: int) -> bytes:
        """The last output of a stream that was aborted: with half a character that was held
        back."""
        text = self.event({"content": self.text(first, upto) + HALF, "reasoning_content": None})
        return text + self.event({"reasoning_content": None}, "abort")

    def last(self) -> bytes:
        """All of a stream that was dropped before its first token, but for its head."""
        return self.event({"reasoning_content": None}, "abort")

    def whole(self, count: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text(0, count)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return {**self.base, "choices": [choice], "usage": self.usage(count)}

    def dropped(self) -> dict[str, Any]:
        """As `whole`, of a request that was dropped before its first token."""
        whole = self.whole(0)
        whole["choices"][0]["finish_reason"] = "abort"
        return whole


class Completions(Chat):
    """/v1/completions."""

    def __init__(self, body: dict[str, Any], rid: str, seed: int) -> None:
        super().__init__(body, rid, seed)
        self.base["object"] = "text_completion"
        self.head = b""
        self.logprobs = body.get("logprobs")

    def choice(self, text: str, finish: str | None, tokens: list[str]) -> dict[str, Any]:
        logprobs = None
        if self.logprobs is not None:  # 0: without alternatives
            logprobs = {
                "tokens": tokens,
                "token_logprobs": [-1.0] * len(tokens),
                "top_logprobs": [None] * len(tokens),
                "text_offset": [-1] * len(tokens),
            }
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def delta(self, first: int, upto: int) -> bytes:
        tokens = [word(self.seed, i) for i in range(first, upto)]
        choices = [self.choice("".join(tokens), None, tokens)]
        return b"data: " + orjson.dumps({**self.base, "choices": choices}) + b"\n\n"

    def tail(self, count: int) -> list[bytes]:
        choices = [self.choice("", "length", [])]
        events = [b"data: " + orjson.dumps({**self.base, "choices": choices}) + b"\n\n"]
        return events + super().tail(count)[1:]

    def aborted(self, first: int, upto: int) -> bytes:
        choices = [self.choice(self.text(first, upto) + HALF, "abort", [])]
        return b"data: " + orjson.dumps({**self.base, "choices": choices}) + b"\n\n"

    def last(self) -> bytes:
        choices = [self.choice("", "abort", [])]
        return b"data: " + orjson.dumps({**self.base, "choices": choices}) + b"\n\n"

    def whole(self, count: int) -> dict[str, Any]:
        tokens = [word(self.seed, i) for i in range(count)]
        choice = self.choice("".join(tokens), "length", tokens)
        return {**self.base, "choices": [choice], "usage": self.usage(count)}


class Generate:
    """/generate: cumulative, as SGLang streams by default."""

    head = b""

    def __init__(self, body: dict[str, Any], rid: str, seed: int) -> None:
        self.rid = rid
        self.seed = seed

    def body(self, count: int, finish: Any) -> dict[str, Any]:
        return {
            "text": "".join(word(self.seed, i) for i in range(count)),
            "output_ids": [token_id(self.seed, i) for i in range(count)],
            "meta_info": {
                "id": self.rid,
                "finish_reason": finish,
                "prompt_tokens": 1,
                "completion_tokens": count,
                "input_token_logprobs": [],
            },
        }

    def delta(self, first: int, upto: int) -> bytes:
        return b"data: " + orjson.dumps(self.body(upto, None)) + b"\n\n"

    def tail(self, count: int) -> list[bytes]:
        return [b"data: " + orjson.dumps(self.whole(count)) + b"\n\n"]

    def aborted(self, first: int, upto: int) -> bytes:
        body = self.body(upto, {"type": "abort", "message": "Aborted"})
        return b"data: " + orjson.dumps({**body, "text": body["text"] + HALF}) + b"\n\n"

    def last(self) -> bytes:
        return b"data: " + orjson.dumps(self.dropped()) + b"\n\n"

    def dropped(self) -> dict[str, Any]:
        return self.body(0, {"type": "abort", "message": "Abort in waiting queue"})

    def whole(self, count: int) -> dict[str, Any]:
        return self.body(count, {"type": "length", "length": count})


STREAMS: dict[str, Any] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completions,
    "/generate": Generate,
}


def prompt_of(body: dict[str, Any]) -> Any:
    for key in ("messages", "prompt", "text", "input_ids"):
        if body.get(key) is not None:
            return body[key]
    return ""


def _ticket(body: dict[str, Any]) -> dict[str, Any]:
    params = body.get("sampling_params") or {}
    custom = body.get("custom_params") or params.get("custom_params") or {}
    return custom.get("toolkit") or {}


def resumed_ids(body: dict[str, Any]) -> list[int]:
    return [int(token) for token in (_ticket(body).get("resume") or "").split()]


def late_of(body: dict[str, Any]) -> int:
    """How many of them are placeholders."""
    return int(_ticket(body).get("late") or 0)
