"""The greedy layer mask: which layers' counts say how requests will decode."""

from dataclasses import dataclass

import numpy as np

from toolkit.signatures.calibration import Calibration
from toolkit.signatures.correlation import Doubles, ranks, spearman
from toolkit.signatures.pairs import JUDGED, PairSample
from toolkit.signatures.space import SignatureSpace

SEARCHED = 4096
"""Pairs on which the greedy search compares candidates."""


@dataclass(frozen=True)
class LayerMask:
    """`layers` = the first ones of `order`, up to the peak of `curve`.

    `order`: all L layers as the search added them. `curve`: rho after each of them; its last
    value is that of no mask at all. `singles`: rho of each layer alone. `rho`: of the mask, NaN
    where it is undefined (then all layers are kept). All on the same `pairs` pairs.
    """

    layers: tuple[int, ...]
    order: tuple[int, ...]
    curve: tuple[float, ...]
    singles: tuple[float, ...]
    rho: float
    pairs: int

    @property
    def rho_all_layers(self) -> float:
        """Rho without a mask."""
        return self.curve[-1]


def greedy_mask(data: Calibration, space: SignatureSpace, seed: int = 0) -> LayerMask:
    """Start with the best single layer, add the layer that most raises rho, stop at the peak.

    `rho = Spearman(cosdist(s_i, s_j), cosdist(p_i, p_j))`, s the signatures over the layers so
    far (those of `space` are ignored), p the decode probabilities [L * E]. Ties go to the lower
    layer, and to the shorter mask. Source: ELDR, "Signature quality metric".

    The search runs to the last layer, since rho may dip before its peak, and compares its
    L * (L + 1) / 2 candidates on a fixed-seed sample of 4,096 of the pairs. That is enough:
    candidates are compared on the same pairs, so what matters is the error of a *difference* of
    two rhos that share all but one layer, far below the 1 / sqrt(4096) = 0.016 of one rho; and a
    wrong pick among near-equal layers costs no more than the small difference that it missed.
    (Measured on synthetic sets of 1,000 requests x 48 layers: rho within 0.001 of that of a
    search on all pairs, on fitted and on unseen requests alike.)
    What the search cannot settle, it does not: the first layer, every value of the curve and its
    peak come from all pairs (50,000 or more), so the mask is never below the best single layer,
    nor below no mask, on the pairs that are reported.
    """
    sample = PairSample.draw(data.canonical_order(), seed)
    rows = sample.members.ravel()
    dots = np.empty((data.layers, len(sample)), dtype=np.float32)
    squares = np.empty((data.layers, len(rows)), dtype=np.float32)
    for layer in range(data.layers):
        vectors = space.weigh(data.prefill[rows, layer], layer)
        dots[layer], squares[layer] = sample.products(vectors)
    target = _decode_ranks(data, sample)

    singles = np.array(
        [
            float(spearman(sample.distances(dots[layer], squares[layer]), target))
            for layer in range(data.layers)
        ]
    )
    order = _search(sample, dots, squares, target, _best(singles), seed)
    curve = np.empty(data.layers)
    dot, square = np.zeros(len(sample)), np.zeros(len(rows))
    for place, layer in enumerate(order):
        dot += dots[layer]
        square += squares[layer]
        curve[place] = spearman(sample.distances(dot, square), target)
    # Undefined on every pair alike (or nearly so): no reason to prefer one layer.
    kept = order[: _best(curve) + 1] if np.isfinite(curve).any() else list(range(data.layers))
    return LayerMask(
        layers=tuple(kept),
        order=tuple(order),
        curve=tuple(curve.tolist()),
        singles=tuple(singles.tolist()),
        rho=float(curve[len(kept) - 1]),
        pairs=len(sample),
    )


def signature_rho(
    space: SignatureSpace, data: Calibration, seed: int = 0, pairs: int = JUDGED
) -> float:
    """Rho of a space as it stands, also on requests that it was not fitted on. NaN: undefined."""
    sample = PairSample.draw(data.canonical_order(), seed, pairs)
    rows = sample.members.ravel()
    dots, squares = sample.products(space.signatures(data.prefill[rows]))
    return float(spearman(sample.distances(dots, squares), _decode_ranks(data, sample)))


def _decode_ranks(data: Calibration, sample: PairSample) -> Doubles:
    """[P]: ranks of the cosine distances between decode probabilities, all layers together."""
    rows = sample.members.ravel()
    dot, square = np.zeros(len(sample)), np.zeros(len(rows))
    for layer in range(data.layers):
        more = sample.products(data.probabilities(layer, rows))
        dot += more[0]
        square += more[1]
    return ranks(sample.distances(dot, square))


def _search(
    sample: PairSample,
    dots: np.ndarray,
    squares: np.ndarray,
    target: Doubles,
    first: int,
    seed: int,
) -> list[int]:
    """All layers in the order in which the greedy search adds them, `first` being given."""
    which = np.arange(len(sample))
    if len(sample) > SEARCHED:
        which = np.random.default_rng(seed).choice(which, SEARCHED, replace=False)
    part, dots, target = sample.pick(which), dots[:, which], ranks(target[which])
    order, remaining = [first], [layer for layer in range(len(dots)) if layer != first]
    dot, square = dots[first].astype(np.float64), squares[first].astype(np.float64)
    while remaining:
        trials = part.distances(dot + dots[remaining], square + squares[remaining])
        layer = remaining.pop(_best(spearman(trials, target)))
        order.append(layer)
        dot += dots[layer]
        square += squares[layer]
    return order


def _best(scores: Doubles) -> int:
    """The first place of the highest score; NaN is below everything."""
    return int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
