"""Requests to a router over stand-in workers, and what comes back."""

import asyncio
import json
from typing import Any

from tests.standin.cluster import Cluster
from tests.standin.streams import seed_of, word

PROMPT = [{"role": "user", "content": "hello"}]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 150))


def expected(prompt: Any, count: int) -> str:
    seed = seed_of(prompt)
    return "".join(word(seed, i) for i in range(count))


def bodies(tokens: int, stream: bool = True, **extra: Any) -> dict[str, dict[str, Any]]:
    return {
        "/v1/chat/completions": {
            "messages": PROMPT, "max_tokens": tokens, "stream": stream, **extra},
        "/v1/completions": {"prompt": "hello", "max_tokens": tokens, "stream": stream, **extra},
        "/generate": {
            "text": "hello", "sampling_params": {"max_new_tokens": tokens}, "stream": stream,
            **extra},
    }  # fmt: skip


async def post(cluster: Cluster, path: str, body: Any, **options: Any) -> tuple[int, bytes]:
    """To the public port; with `admin` to the admin's port."""
    url = cluster.admin if options.pop("admin", False) else cluster.url
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    async with cluster.session.post(url + path, data=data, headers=headers) as response:
        return response.status, await response.read()


def events(raw: bytes) -> list[Any]:
    """All events of a stream, which must end with [DONE]."""
    parts = [part for part in raw.split(b"\n\n") if part]
    assert parts[-1] == b"data: [DONE]", parts[-3:]
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts[:-1]]


def text_of(path: str, raw: bytes) -> str:
    got = events(raw)
    assert not any("error" in event for event in got), got[-1]
    if path == "/generate":
        counts = [event["meta_info"]["completion_tokens"] for event in got]
        assert counts == sorted(counts)
        assert len({event["meta_info"]["id"] for event in got}) == 1
        return str(got[-1]["text"])
    assert len({event["id"] for event in got}) == 1
    choices = [choice for event in got for choice in event["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    if path == "/v1/completions":
        return "".join(choice["text"] for choice in choices)
    assert sum(bool(choice["delta"].get("role")) for choice in choices) == 1
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def prompt_of(path: str) -> Any:
    return PROMPT if path == "/v1/chat/completions" else "hello"


def _whole(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def idle(state: dict[str, Any]) -> bool:
    return state["running"] == state["queued"] == state["parked"] == 0 and all(
        w["inflight"] == w["inflight_tokens"] == 0 for w in state["workers"]
    )
