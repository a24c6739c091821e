"""Bounds of what a worker says: numbers, names and lists, by their types.

A worker may be broken or taken over. What it says is checked once, where it is decoded: no number
that JSON, a metric or a sum of such numbers cannot hold, and no text that fills memory.
"""

from typing import Annotated

import msgspec

TOKENS = 2**31
"""No prompt, answer or context has so many tokens."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS)]
"""Of one request, or of a model's context; also steps between two events."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Requests or KV tokens of a rank, at one time."""
Sum = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Of counts over a while, or bytes."""
Small = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
"""A rank, a layer or an expert, or how many there are."""
Serial = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Room = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""SGLang's bootstrap room: 63 bits."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=2.0**53)]
"""A sum of means."""
Clock = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Seconds of some clock, or between two clocks."""

Name = Annotated[str, msgspec.Meta(max_length=1024)]
"""An id, or the name of a thing."""
Text = Annotated[str, msgspec.Meta(max_length=4096)]
"""A path, or why something is so."""
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=1024)]
Smalls = Annotated[tuple[Small, ...], msgspec.Meta(max_length=2**16)]
Layers = Annotated[list[Small], msgspec.Meta(max_length=2**12)]
