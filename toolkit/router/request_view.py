"""What policies are told of a request before it runs."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import Any

from toolkit.policies.base import RequestView
from toolkit.router.request import Endpoint, Wanted, encode

BLOCK_BYTES = 256
MAX_BLOCKS = 256
BYTES_PER_TOKEN = 4
"""A guess for texts, which the router cannot tokenize; the prefill's event has the true count."""
HUGE = 2**40
"""No limit of tokens is that high."""
OFF = 2
"""Tokens that SGLang takes off the limit of /v1/responses."""
_PROMPTS = {
    "chat": "messages",
    "completions": "prompt",
    "messages": "messages",
    "count_tokens": "messages",
    "rerank": "documents",
    "score": "items",
}
"""Fields that hold the prompt; `input` of all others."""
MAX_LABEL = 64
"""Characters of a label that are looked at."""
SALT = os.urandom(16)
"""Of digests of users and prompts: nobody can look one up who is not this process."""


def view_of(
    endpoint: Endpoint,
    body: dict[str, Any],
    wanted: Wanted,
    label: str | None,
    user: str | None,
    now: float,
) -> tuple[RequestView, int]:
    """And the bytes of the prompt, 0 where nobody wants to look at them."""
    prompt = _prompt(endpoint, body)
    digest = wanted.blocks or wanted.hashes
    if isinstance(prompt, str):
        size = len(prompt) // BYTES_PER_TOKEN + 1
        text = prompt.encode("utf-8", "surrogatepass") if digest else b""
    elif isinstance(prompt, list) and endpoint in ("completions", "generate"):
        size, text = len(prompt), encode(prompt) if digest else b""
    elif isinstance(prompt, list):
        size = sum(_message_size(message) for message in prompt) // BYTES_PER_TOKEN + 1
        text = json.dumps([*_before(endpoint, body), prompt]).encode() if digest else b""
    else:
        size, text = 1, b""
    most, least = _limits(endpoint, body)
    view = RequestView(
        prompt_tokens=size,
        blocks=_blocks(text) if wanted.blocks else (),
        user=user,
        label=label[:MAX_LABEL] if label else None,
        max_new_tokens=most,
        min_new_tokens=least,
        prompt_hash=_hash(text) if wanted.hashes and text else None,
        now=now,
    )
    return view, len(text)


def _prompt(endpoint: Endpoint, body: dict[str, Any]) -> Any:
    """The longest part of what the model reads: a text, ids or messages."""
    if endpoint == "generate":
        return body.get("text") if body.get("text") is not None else body.get("input_ids")
    return body.get(_PROMPTS.get(endpoint, "input"))


def _before(endpoint: Endpoint, body: dict[str, Any]) -> list[Any]:
    """What a template puts before the messages."""
    names = {"messages": ("tools", "system"), "responses": ("tools", "instructions")}
    return [body.get(name) for name in names.get(endpoint, ("tools",))]


def _limits(endpoint: Endpoint, body: dict[str, Any]) -> tuple[int, int]:
    """The most and the least tokens that it may generate, 0 where it does not say; of what is no
    such number a worker says what is wrong."""
    if endpoint == "generate":
        where = body.get("sampling_params")
        if not isinstance(where, dict):
            return 0, 0
        most, least = where.get("max_new_tokens"), where.get("min_new_tokens")
    elif endpoint == "responses":
        where, most, least = body, body.get("max_output_tokens"), 0
        most = most - OFF if type(most) is int else None
    else:
        where = body
        most = body.get("max_completion_tokens") if endpoint == "chat" else None
        most, least = most or body.get("max_tokens"), body.get("min_tokens")
    most = most if type(most) is int and 0 < most < HUGE else 0
    if where.get("ignore_eos") is True:
        return most, most
    return most, least if type(least) is int and 0 < least < HUGE else 0


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8, key=SALT).digest(), "big")


def anonymous(block: int) -> int:
    """Another name for a block (`RequestView.blocks`), as lasting as this process."""
    name = blake2b(block.to_bytes(8, "big"), digest_size=6, key=SALT).digest()
    return int.from_bytes(name, "big")


def _message_size(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return len(content)
    return len(str(content)) if content is not None else 0


def _blocks(text: bytes) -> tuple[int, ...]:
    """Chained hashes of whole blocks: equal up to i means equal text up to the end of block i."""
    chain, out = b"", []
    for start in range(0, min(len(text), BLOCK_BYTES * MAX_BLOCKS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = blake2b(chain + text[start : start + BLOCK_BYTES], digest_size=8).digest()
        out.append(int.from_bytes(chain, "big"))
    return tuple(out)
