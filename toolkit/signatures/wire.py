"""How a request's expert counts travel from the prefill worker to the router.

Counts [S, E] of the S layers of the mask are sent as one byte each: as they are up to 255, else
divided by `scale` and rounded, which moves a value by at most 0.2 % of the greatest one. 48 layers
of 128 experts are 6 KB. Whole integers arrive exactly as long as none is above 255.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.contract.events import Signature
from toolkit.signatures.calibration import Floats

LARGEST = 255


def pack(counts: NDArray[Any], tokens: int, complete: bool) -> Signature:
    """From integer counts [S * E] (or [S, E])."""
    largest = int(counts.max(initial=0))
    if largest <= LARGEST:
        return Signature(counts.astype(np.uint8).tobytes(), 1.0, tokens, complete)
    scale = largest / LARGEST
    return Signature(np.rint(counts / scale).astype(np.uint8).tobytes(), scale, tokens, complete)


def unpack(given: Any) -> tuple[Floats, Signature]:
    """Counts [S * E] float32 and the rest, from what an event holds (`counts` in base64).

    ValueError: not such a mapping.
    """
    try:
        wire = msgspec.convert(given, Signature)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a signature: {error}") from error
    counts = np.frombuffer(wire.counts, dtype=np.uint8).astype(np.float32)
    if wire.scale != 1.0:
        counts *= np.float32(wire.scale)
    return counts, wire
