"""The expert counts that a stand-in prefill worker makes up."""

from base64 import b64encode
from typing import Any

from tests.standin.streams import prompt_of, seed_of

TOKENS = 64


def signature_event(body: dict[str, Any], values: int) -> Any:
    """What `prefill_done` says of the experts; None from a worker that records none."""
    if "standin_signature" in body:
        return body["standin_signature"]
    if not values:
        return None
    return wire(body.get("standin_counts") or made_up(seed_of(prompt_of(body)), values))


def made_up(seed: int, values: int) -> list[int]:
    """Counts that depend on the prompt only."""
    return [(seed * (place + 3) * 7919) % 23 for place in range(values)]


def wire(counts: list[int], **changes: Any) -> dict[str, Any]:
    """The JSON form of counts below 256."""
    packed = b64encode(bytes(counts)).decode()
    return {"counts": packed, "scale": 1.0, "tokens": TOKENS, "complete": True, **changes}
