"""The signature space: how counts become the vectors that are clustered and routed by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Counts, Floats, Indices, check_counts

_ROWS = 512  # requests weighed at a time: bounds the temporaries, not the result


@dataclass(frozen=True, eq=False)
class SignatureSpace:
    """`s = x / |x|`, x the concatenation over the kept layers of `c[l] * w[l]`.

    `weights`: [L, E] float32 (IDF, or ones). `layers`: the kept ones in order of selection; the
    concatenation is in ascending order, which the cosine does not see. `curve`: rho after each
    layer of the greedy search, over *all* L layers, so `len(layers)` is where it peaked; empty
    where rho was undefined. `binary`: whether an expert fired, in place of how often (reports
    only). Counts add up, so the signature of a request is that of the sum of its parts' counts.
    Source: ELDR, "Signature construction". ValueError: weights that are not finite and
    non-negative, or layers that do not exist.
    """

    weights: Floats
    layers: tuple[int, ...]
    curve: tuple[float, ...] = ()
    binary: bool = False

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float32)
        if weights.ndim != 2 or not np.isfinite(weights).all() or (weights < 0).any():
            raise ValueError(
                f"weights of shape {weights.shape} must be [layers, experts], finite and >= 0"
            )
        layers = tuple(int(layer) for layer in self.layers)
        if not layers or len(set(layers)) != len(layers):
            raise ValueError(f"layers {layers} must be at least one, each named once")
        if min(layers) < 0 or max(layers) >= len(weights):
            raise ValueError(f"layers {layers} must lie in 0..{len(weights) - 1}")
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "layers", layers)

    @cached_property
    def kept(self) -> Indices:
        """The kept layers, ascending: the order of the concatenation."""
        return np.array(sorted(self.layers), dtype=np.int64)

    @property
    def dimensions(self) -> int:
        """D = kept layers * experts: the length of a signature."""
        return len(self.layers) * int(self.weights.shape[1])

    def same_as(self, other: SignatureSpace) -> bool:
        """Whether signatures of the two can be compared with each other."""
        return (
            set(self.layers) == set(other.layers)
            and self.binary == other.binary
            and np.array_equal(self.weights, other.weights)
        )

    def weigh(self, counts: NDArray[np.generic], layer: int) -> Floats:
        """[M, E] float32 from one layer's counts [M, E]: weighted, not normalised."""
        values = counts != 0 if self.binary else counts
        result: Floats = np.multiply(
            values, self.weights[layer], dtype=np.float32, casting="unsafe"
        )
        return result

    def signatures(self, counts: Counts) -> Floats:
        """[N, D] float32 from counts [N, L, E]: unit norm, or zero where nothing weighed in.

        ValueError: negative or NaN counts, or another number of layers or experts.
        """
        checked = check_counts(counts)
        if checked.shape[1:] != self.weights.shape:
            raise ValueError(
                f"counts have {checked.shape[1]} layers x {checked.shape[2]} experts, the signature"
                f" space {self.weights.shape[0]} x {self.weights.shape[1]}: another model's profile"
            )
        result = np.empty((len(checked), self.dimensions), dtype=np.float32)
        weights = self.weights[self.kept]
        for start in range(0, len(checked), _ROWS):
            part = checked[start : start + _ROWS, self.kept]
            values = part != 0 if self.binary else part
            rows = result[start : start + _ROWS]
            shaped = rows.reshape(len(rows), *weights.shape)
            np.multiply(values, weights, out=shaped, dtype=np.float32, casting="unsafe")
            normalise(rows)
        return result

    def signature(self, counts: Counts) -> Floats:
        """[D] float32 from one request's counts [L, E]. ValueError: as `signatures`."""
        result: Floats = self.signatures(np.asarray(counts)[None])[0]
        return result

    @cached_property
    def pairs(self) -> np.ndarray:
        """[kept layers, E] float64: the (token, expert) pairs that a unit of each entry stands for;
        0 for an expert that every request uses."""
        weights = self.weights[self.kept].astype(np.float64)
        return np.divide(1, weights, out=np.zeros_like(weights), where=weights > 0)

    @cached_property
    def _kept_weights(self) -> Floats:
        return np.ascontiguousarray(self.weights[self.kept]).reshape(-1)

    def of_kept(self, counts: Floats) -> Floats:
        """[D] float32 from counts [D] of the kept layers only, ascending; what a router does for
        every request, so nothing is checked but the length. ValueError: another length.
        """
        if counts.shape != (self.dimensions,):
            raise ValueError(
                f"a signature of {counts.shape} values, this space has {self.dimensions}: the "
                "prefill worker records other layers than the profile's"
            )
        values: Floats = (counts != 0 if self.binary else counts) * self._kept_weights
        # Not np.dot: its last bit is the CPU's, and a refit sorts requests by all of their bits.
        length = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
        return values if length == 0 else values / np.float32(length)


def normalise(rows: Floats) -> Floats:
    """Divide each row of [N, D] by its length, in place; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, norms, out=rows, where=norms > 0)
    return rows
