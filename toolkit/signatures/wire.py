"""How a request's expert counts travel from the prefill worker to the router.

Counts [S, E] of the S layers of the mask are sent as one byte each: as they are up to 255, else
divided by `scale` and rounded, which moves a value by at most 0.2 % of the greatest one. 48 layers
of 128 experts are 6 KB. Whole integers arrive exactly as long as none is above 255.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Floats

LARGEST = 255


@dataclass(frozen=True, slots=True)
class WireSignature:
    """`counts`: uint8 [S * E], layers ascending; times `scale` they are tokens of the prompt whose
    top-k had the expert. `tokens` is the prompt's length. `complete` is False when some token's
    experts are not known (KV loaded back from host memory, a layer that was not captured).
    """

    counts: bytes
    scale: float
    tokens: int
    complete: bool


def pack(counts: NDArray[Any], tokens: int, complete: bool) -> WireSignature:
    """From integer counts [S * E] (or [S, E])."""
    largest = int(counts.max(initial=0))
    if largest <= LARGEST:
        return WireSignature(counts.astype(np.uint8).tobytes(), 1.0, tokens, complete)
    scale = largest / LARGEST
    return WireSignature(
        np.rint(counts / scale).astype(np.uint8).tobytes(), scale, tokens, complete
    )


def unpack(event: Mapping[str, Any]) -> tuple[Floats, WireSignature]:
    """Counts [S * E] float32 and the rest, from the JSON form (`counts` in base64).

    ValueError: not such a mapping.
    """
    try:
        raw = b64decode(event["counts"], validate=True)
        wire = WireSignature(
            raw, float(event["scale"]), int(event["tokens"]), event["complete"] is True
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a signature: {error!r}") from error
    counts = np.frombuffer(raw, dtype=np.uint8).astype(np.float32)
    if wire.scale != 1.0:
        counts *= np.float32(wire.scale)
    return counts, wire
