"""Large values of a request's body, written out once and shared by all its sub-requests, upstream
calls and retries.

A part of `n: 200` on a prompt of 2 MiB is posted to two workers: written out for each post, that
would be 400 times 2 MiB. A `Packed` value stands in the body's place for what it was; `segments`
then puts its bytes between the others without copying them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from toolkit.router.budget import values
from toolkit.router.request import Job, encode

WORTH = 8 * 1024
"""Bytes of a body from which packing pays."""
_TEXT = 4 * 1024
"""Characters of a text from which it is packed."""
_MANY = 1024
"""Bytes of JSON of a list or an object from which it is packed."""
_LOOKED_AT = frozenset({"rid", "sampling_params", "custom_params", "stream_options"})
"""What the router itself changes or reads after parsing."""


class Packed:
    """JSON of one value, in pieces."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self.pieces = pieces


def pack(job: Job) -> list[Packed]:
    """Replace the large values of all bodies of a job, equal objects by the same `Packed`."""
    known: dict[int, Packed | None] = {}
    kept = []  # so that no id is used twice
    for sub_request in job.sub_requests:
        for key, value in sub_request.body.items():
            if key in _LOOKED_AT or type(value) not in (str, list, dict):
                continue
            if id(value) not in known:
                known[id(value)] = _packed(value)
                kept.append(value)
            packed = known[id(value)]
            if packed is not None:
                sub_request.body[key] = packed
    return [packed for packed in known.values() if packed is not None]


def _packed(value: Any) -> Packed | None:
    """None where it is not worth it."""
    if type(value) is str and len(value) < _TEXT:
        return None
    written = encode(value)
    return Packed((written,)) if type(value) is str or len(written) >= _MANY else None


class Rest(NamedTuple):
    """What a job takes apart from its packed values."""

    bytes: int
    """Of posting all its parts, on two workers each."""
    values: int
    """Of JSON, in all its parts."""


def rest(job: Job) -> Rest:
    once = [
        encode({key: v for key, v in sub_request.body.items() if type(v) is not Packed})
        for sub_request in job.sub_requests
        if sub_request.first_sample
    ]
    return Rest(2 * job.per_prompt * sum(map(len, once)), sum(map(values, once)))


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
