"""Large values of a request's body, written out once and shared by all its parts, legs and retries.

A part of `n: 200` on a prompt of 2 MiB is posted to two workers: written out for each post, that
would be 400 times 2 MiB. A `Packed` value stands in the body's place for what it was; `segments`
then puts its bytes between the others without copying them.
"""

from __future__ import annotations

from typing import Any

import orjson

from toolkit.router.request import Job, encode

WORTH = 8 * 1024
"""Bytes of a body from which packing pays."""
_TEXT = 4 * 1024
"""Characters of a text from which it is packed."""
_PROMPTS = frozenset(
    {"messages", "prompt", "text", "input_ids", "input_embeds", "tools", "image_data", "video_data",
     "audio_data", "input", "system", "documents", "items"}
)  # fmt: skip
_LOOKED_AT = frozenset({"rid", "sampling_params", "custom_params", "stream_options"})
"""What the router itself changes or reads after parsing."""


class Packed:
    """JSON of one value, in pieces."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self.pieces = pieces


def pack(job: Job) -> list[Packed]:
    """Replace the large values of all bodies of a job, equal objects by the same `Packed`."""
    known: dict[int, Packed] = {}
    kept = []  # so that no id is used twice
    for single in job.singles:
        for key, value in single.body.items():
            kind = type(value)
            if key in _LOOKED_AT or not (
                (kind is str and len(value) >= _TEXT) or (kind in (list, dict) and key in _PROMPTS)
            ):
                continue
            packed = known.get(id(value))
            if packed is None:
                packed = known[id(value)] = Packed((encode(value),))
                kept.append(value)
            single.body[key] = packed
    return list(known.values())


def unpacked(job: Job) -> int:
    """Bytes that posting all parts of a job takes apart from packed values, on two workers each."""
    once = (
        len(encode({key: v for key, v in single.body.items() if type(v) is not Packed}))
        for single in job.singles
        if single.first_sample
    )
    return 2 * job.per_prompt * sum(once)


def segments(body: dict[str, Any]) -> tuple[bytes, ...]:
    """`encode`, with packed values as they are: to be sent one after the other."""
    if Packed not in map(type, body.values()):
        return (encode(body),)
    packed = {key: value for key, value in body.items() if type(value) is Packed}
    rest = encode({key: value for key, value in body.items() if key not in packed})
    out, joint = [rest[:-1]], b"" if rest == b"{}" else b","
    for key, value in packed.items():
        out.append(joint + orjson.dumps(key) + b":")
        out += value.pieces
        joint = b","
    out.append(b"}")
    return tuple(out)
