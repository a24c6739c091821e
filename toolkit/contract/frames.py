"""What a worker says on its stream of experts: one line of JSON, the head, and then its bytes.

    {"type": "experts", "rid", "phase", "dp_rank", "start", "shape", "prompt_tokens",
     "cached_tokens", "whole", "end", "bytes"}\n  int16 [rows, layers, top_k]
    {"type": "steps", "dp_rank", "origin", "fields", "shape", "bytes"}\n   float32 [rows, columns]
    {"type": "finished", "dp_rank", "origin", "fields", "shape", "bytes"}\n  float32, of requests
    {"type": "dropped", "frames", "size", "bytes": 0}\n
    {"type": "ping", "bytes": 0}\n

Neither text nor token ids ever pass here.
"""

from typing import Annotated

import msgspec

from toolkit.contract.numbers import Clock, Count, Name, Names, Small, Tokens

FRAME_MAX = 2**30
"""Bytes behind one head: the experts of a long prompt are some hundred MiB."""
Size = Annotated[int, msgspec.Meta(ge=0, le=FRAME_MAX)]


class ExpertsHead(msgspec.Struct, frozen=True, tag="experts", tag_field="type"):
    """What one request was routed to in one `phase` (`prefill`, `decode`).

    `shape` is [rows, layers, top_k], row 0 being the token at position `start`. `whole` is False
    when rows are missing or may be stale. `end` is the worker's monotonic clock in seconds.
    """

    rid: Name
    phase: Name
    dp_rank: Small
    start: Tokens
    shape: tuple[Tokens, Small, Small]
    prompt_tokens: Tokens
    cached_tokens: Tokens
    whole: bool
    end: Clock
    bytes: Size = 0


class StepsHead(msgspec.Struct, frozen=True, tag="steps", tag_field="type"):
    """Steps of one rank: `fields` name the first columns of `shape` [rows, columns], those behind
    them are distinct experts by layer, of ranks that share their experts (DP attention) those of
    all together; all 0 in a step of which that is not known. `origin`: seconds to add to `end` for
    the rank's clock."""

    dp_rank: Small
    origin: Clock
    fields: Names
    shape: tuple[Count, Count]
    bytes: Size = 0


class FinishedHead(msgspec.Struct, frozen=True, tag="finished", tag_field="type"):
    """Requests that ended in the steps of the frame before: one row each (`fields`)."""

    dp_rank: Small
    origin: Clock
    fields: Names
    shape: tuple[Count, Count]
    bytes: Size = 0


class DroppedHead(msgspec.Struct, frozen=True, tag="dropped", tag_field="type"):
    """So many `frames` of `size` bytes in all were dropped here: the listener had left too much
    unread."""

    frames: Count
    size: Count
    bytes: Size = 0


class PingHead(msgspec.Struct, frozen=True, tag="ping", tag_field="type"):
    """Nothing has come for a second, and the worker lives."""

    bytes: Size = 0


Head = ExpertsHead | StepsHead | FinishedHead | DroppedHead | PingHead

_decoder = msgspec.json.Decoder(Head)
_encoder = msgspec.json.Encoder()


def encode(head: Head, body: bytes = b"") -> bytes:
    """A frame."""
    return _encoder.encode(msgspec.structs.replace(head, bytes=len(body))) + b"\n" + body


def decode_head(line: bytes) -> Head:
    """The head in a line. ValueError: it is none."""
    try:
        head: Head = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a frame of a worker's stream: {error}") from None
    return head
