"""What a stand-in makes of a body that nobody could serve: a sane one. For fuzzed bodies."""

import json
from typing import Any

import orjson

MOST_TOKENS = 24


def sane(raw: bytes) -> dict[str, Any]:
    """A body with a text for a prompt, few tokens and no options; it never raises."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = {}
    if not isinstance(body, dict):
        body = {}
    prompt = next((body[key] for key in ("messages", "prompt", "text") if body.get(key)), "")
    wanted = body.get("max_tokens")
    tokens = min(wanted, MOST_TOKENS) if type(wanted) is int and wanted > 0 else 4
    return {
        "prompt": repr(prompt)[:1000].encode("ascii", "replace").decode(),
        "rid": str(body.get("rid"))[:300],
        "stream": body.get("stream") is True,
        "max_tokens": tokens,
    }
