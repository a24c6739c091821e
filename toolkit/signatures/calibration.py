"""Calibration counts: what was measured of each request, checked once where it enters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[Any]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]

_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Calibration:
    """N requests' expert counts at L MoE layers of E experts each.

    `prefill` and `decode`: [N, L, E], the tokens of a request whose top-k at a layer contains the
    expert (counts, not gate scores). `tokens`: [N], the decode tokens of each request, so that
    `decode / tokens` is the probability that one decode step of the request loads an expert.

    ValueError, saying how to mend it: no requests; shapes that differ; negative, NaN or infinite
    counts; a request without decode tokens or with more counts than tokens; a layer that fires
    no expert at all (a dense layer, or a capture that missed it).
    """

    prefill: Counts
    decode: Counts
    tokens: NDArray[Any]

    def __post_init__(self) -> None:
        prefill = check_counts(self.prefill, "prefill counts")
        decode = check_counts(self.decode, "decode counts")
        tokens = np.asarray(self.tokens)
        if decode.shape != prefill.shape:
            raise ValueError(
                f"decode counts have shape {decode.shape}, prefill counts {prefill.shape}: "
                "both must hold the same requests, layers and experts, in the same order"
            )
        if tokens.shape != prefill.shape[:1]:
            raise ValueError(
                f"decode tokens have shape {tokens.shape}, expected ({len(prefill)},): "
                "one number of decode tokens for each request"
            )
        _check_tokens(decode, tokens)
        _check_layers(prefill, "prefill")
        _check_layers(decode, "decode")
        for name, array in (("prefill", prefill), ("decode", decode), ("tokens", tokens)):
            object.__setattr__(self, name, array)

    @property
    def requests(self) -> int:
        """N."""
        return int(self.prefill.shape[0])

    @property
    def layers(self) -> int:
        """L."""
        return int(self.prefill.shape[1])

    @property
    def experts(self) -> int:
        """E."""
        return int(self.prefill.shape[2])

    def probabilities(self, layer: int, rows: Indices | slice = slice(None)) -> Floats:
        """[len(rows), E] float32: that a decode token of the request activates the expert."""
        counts = self.decode[rows, layer].astype(np.float32)
        counts /= np.asarray(self.tokens[rows], dtype=np.float32)[:, None]
        return np.minimum(counts, 1.0, out=counts)

    def canonical_order(self) -> Indices:
        """[N]: an order of the requests that depends on their content alone (see the function)."""
        return canonical_order(self.prefill, self.decode)

    def subset(self, rows: Indices | NDArray[np.bool_]) -> Calibration:
        """Those requests only, to fit on some and judge on others."""
        return Calibration(self.prefill[rows], self.decode[rows], self.tokens[rows])


def check_counts(counts: Any, what: str = "counts") -> Counts:
    """The counts as an array [N, L, E]. ValueError: see `Calibration`."""
    array = np.asarray(counts)
    if array.ndim != 3:
        raise ValueError(
            f"{what} have shape {array.shape}, expected [requests, layers, experts]; "
            "one request alone is counts[None]"
        )
    if not array.shape[0]:
        raise ValueError(f"{what} hold no requests: run calibration prompts first")
    if not array.size:
        raise ValueError(f"{what} have shape {array.shape}: no layers or no experts")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{what} have dtype {array.dtype}, expected numbers of tokens")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = _shown(np.flatnonzero(~np.isfinite(array).all(axis=(1, 2))))
        raise ValueError(f"{what} of request {bad} are NaN or infinite: measure or drop them")
    if array.dtype.kind != "u" and array.min() < 0:
        bad = _shown(np.flatnonzero((array < 0).any(axis=(1, 2))))
        raise ValueError(
            f"{what} of request {bad} are negative: an integer overflowed, or the ids were masked"
        )
    return array


def canonical_order(*columns: NDArray[Any]) -> Indices:
    """[N]: sorts the rows of equally long arrays by their bytes, the first array first.

    Seeded choices made in this order pick the same requests however the caller sorted them.
    """
    order = np.arange(len(columns[0]), dtype=np.int64)
    for column in reversed(columns):
        rows = np.ascontiguousarray(column).reshape(len(column), -1)
        whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
        order = order[np.argsort(whole[order], kind="stable")]
    return order


def _check_tokens(decode: Counts, tokens: NDArray[Any]) -> None:
    if tokens.dtype.kind not in "iuf" or not np.isfinite(tokens).all():
        raise ValueError("decode tokens must be finite numbers, one for each request")
    if (tokens < 1).any():
        bad = _shown(np.flatnonzero(tokens < 1))
        raise ValueError(
            f"request {bad} has no decode tokens: drop it, or let it generate at least one"
        )
    most = decode.max(axis=(1, 2))
    if (most > tokens).any():
        bad = _shown(np.flatnonzero(most > tokens))
        raise ValueError(
            f"request {bad} has an expert counted more often than it has decode tokens: "
            "a token counts once for each expert, and the prefill's tokens do not belong here"
        )


def _check_layers(counts: Counts, phase: str) -> None:
    silent = np.flatnonzero(~counts.any(axis=(0, 2)))
    if silent.size:
        raise ValueError(
            f"layer {_shown(silent)} never fires an expert in the {phase}: leave dense layers out "
            "of the counts, or check that the capture covers these layers"
        )


def _shown(numbers: NDArray[Any]) -> str:
    text = ", ".join(str(number) for number in numbers[:_SHOWN])
    return f"{text}, ... ({len(numbers)} in all)" if len(numbers) > _SHOWN else text
