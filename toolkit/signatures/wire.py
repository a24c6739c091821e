"""How a request's expert counts travel from the prefill worker to the router.

Counts [S, E] of the S layers of the mask are sent as they are: in one byte each where the greatest
fits into it, else in two, beyond 65,535 in four. None is scaled or rounded: an expert that a few
tokens of a long prompt used would become zero, and IDF weighs such an expert most. In bytes, and
in base64 on the wire (`tests.benchmarks.signature` measures them):

| model | prompt | counts | on the wire |
|---|---|---|---|
| embedded, 6 layers x 48 experts | up to 255 tokens | 288 | 384 |
| | 8,192 tokens | 576 | 768 |
| 48 x 128 | 1,000 tokens | 12,288 | 16,384 |
| 58 x 256 | 8,192 tokens | 29,696 | 39,596 |

That is 0.01 % of the KV that goes to the decode worker in the last case. Varints or zlib would save
a quarter of it there, for 30 and 70 times the time to pack, which is the scheduler's thread's.
"""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.contract.events import Signature
from toolkit.signatures.calibration import Floats

_TYPES: dict[int, str] = {1: "u1", 2: "<u2", 4: "<u4"}
"""By width in bytes."""
LARGEST = 2**32 - 1


def pack(counts: NDArray[Any], tokens: int, complete: bool) -> Signature:
    """From integer counts [S * E] (or [S, E]). ValueError: one is negative or above `LARGEST`."""
    largest = int(counts.max(initial=0))
    if largest > LARGEST or counts.min(initial=0) < 0:
        raise ValueError("counts of tokens must lie between 0 and 2^32 - 1")
    width: Literal[1, 2, 4] = 1 if largest < 2**8 else 2 if largest < 2**16 else 4
    return Signature(counts.astype(_TYPES[width]).tobytes(), 1.0, tokens, complete, width)


def unpack(given: Any) -> tuple[Floats, Signature]:
    """Counts [S * E] float32 and the rest, from what an event holds (`counts` in base64).

    Exact up to 2^24 tokens of a prompt, whatever the width. ValueError: not such a mapping, or no
    whole number of counts.
    """
    try:
        wire = msgspec.convert(given, Signature)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a signature: {error}") from error
    if len(wire.counts) % wire.width:
        raise ValueError(
            f"not a signature: {len(wire.counts)} bytes of counts, {wire.width} for each"
        )
    counts = np.frombuffer(wire.counts, dtype=_TYPES[wire.width]).astype(np.float32)
    if wire.scale != 1.0:  # a worker of before `width`
        counts *= np.float32(wire.scale)
    return counts, wire
