"""Whose request it is: one digest from the fields in which clients already say so."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from toolkit.contract.headers import ROUTING_KEY as HEADER

__all__ = ["HEADER", "MAX_NAME", "user_of"]

MAX_NAME = 4096
"""Characters. A longer name is passed over: cut off, it could be that of many users."""
_DIGEST_BYTES = 12


def user_of(body: Mapping[str, Any], header: str | None = None, salt: bytes = b"") -> str | None:
    """24 hexadecimal digits that stand for the user; None when the request names nobody.

    The first of these that is a string of 1 to `MAX_NAME` characters, the closest word on where
    the prompt's beginning lies first:

    1. `header`, the value of `x-smg-routing-key`, then `routing_key` in the body (SGLang's
       /generate): what the client or a gateway says about routing, and nothing else. Both count
       as one: SGLang hands its DP controller the header as `routing_key`.
    2. `session_id` in the body (SGLang): one conversation, whose turns share their beginning.
    3. `user` in the body (OpenAI): a person, with any number of conversations.

    A session and a user of one name are two. Anything else in those fields (numbers, lists, null)
    is passed over: a worker says what is wrong with it. Names often are addresses of people, so
    only a keyed BLAKE2b of 96 bits leaves this function. `salt` (at most 64 bytes; ValueError) is
    what keeps a digest from being looked up by hashing likely names: random, drawn once by each
    process, unless processes must agree on who is who.
    Source of the fields: SGLang 0.5.21, `srt/managers/io_struct.py` and `srt/entrypoints/openai/`.
    """
    named = (
        ("key", header),
        ("key", body.get("routing_key")),
        ("session", body.get("session_id")),
        ("user", body.get("user")),
    )
    for kind, name in named:
        if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
            # A lone surrogate is valid in JSON.
            text = f"{kind}:{name}".encode("utf-8", "surrogatepass")
            return blake2b(text, digest_size=_DIGEST_BYTES, key=salt).hexdigest()
    return None
