"""What each step of the signature is worth: rho of the variants, for the report."""

from dataclasses import dataclass

import numpy as np

from toolkit.signatures.calibration import Calibration
from toolkit.signatures.idf import idf_weights
from toolkit.signatures.mask import greedy_mask, signature_rho
from toolkit.signatures.space import SignatureSpace

VARIANTS = ("count", "binary", "count_idf")
"""Raw counts; whether an expert fired at all (gate-less binary); counts x IDF (ELDR's choice)."""


@dataclass(frozen=True)
class VariantRho:
    """Rho of one variant, with its own greedy mask and with all layers.

    `rho`, `rho_all_layers`: on the fitted requests, or on the judged ones where some were given
    (`held_out`). NaN where undefined. `layers`: the mask, in order of selection.
    """

    name: str
    rho: float
    rho_all_layers: float
    layers: tuple[int, ...]
    held_out: bool


def variant_space(name: str, data: Calibration) -> SignatureSpace:
    """The variant over all layers. ValueError names the known ones."""
    if name not in VARIANTS:
        raise ValueError(f"unknown signature variant {name!r}; known: {', '.join(VARIANTS)}")
    shape = (data.layers, data.experts)
    weights = idf_weights(data.prefill) if name == "count_idf" else np.ones(shape, np.float32)
    return SignatureSpace(weights, tuple(range(data.layers)), binary=name == "binary")


def compare_variants(
    fitted: Calibration, judged: Calibration | None = None, seed: int = 0
) -> list[VariantRho]:
    """Weights and masks from `fitted`; rho on `judged`, requests that were not fitted, if given.

    A mask can only raise rho on the requests that chose it, so what it is worth shows on others.
    """
    result = []
    for name in VARIANTS:
        space = variant_space(name, fitted)
        mask = greedy_mask(fitted, space, seed)
        rho, without = mask.rho, mask.rho_all_layers
        if judged is not None:
            masked = SignatureSpace(space.weights, mask.layers, binary=space.binary)
            rho = signature_rho(masked, judged, seed)
            without = signature_rho(space, judged, seed)
        result.append(VariantRho(name, rho, without, mask.layers, judged is not None))
    return result
