"""Expert signatures (ELDR): requests that use the same experts lie near each other.

`fit` turns stored counts into one centroid for each decode worker; `SignatureSpace` turns a
request's counts into the vector that is compared with them. Pure numpy: no torch, no clock.
"""

from toolkit.signatures.assignment import ClusterAssignment, balanced_assignment
from toolkit.signatures.calibration import Calibration
from toolkit.signatures.centroids import CentroidFit, fit, fit_space
from toolkit.signatures.clusters import Clusters, balanced_kmeans, nearest, vanilla_kmeans
from toolkit.signatures.distinct import DistinctExperts, distinct_reduction, expected_distinct
from toolkit.signatures.drift import (
    DriftRules,
    DriftWatch,
    Nearness,
    Recent,
    Refit,
    refit_recent,
)
from toolkit.signatures.idf import idf_weights
from toolkit.signatures.mask import LayerMask, greedy_mask, signature_rho
from toolkit.signatures.matching import match_centroids
from toolkit.signatures.online import RefitWindow, warm_refit
from toolkit.signatures.space import SignatureSpace
from toolkit.signatures.variants import VARIANTS, VariantRho, compare_variants

__all__ = [
    "VARIANTS",
    "Calibration",
    "CentroidFit",
    "ClusterAssignment",
    "Clusters",
    "DistinctExperts",
    "DriftRules",
    "DriftWatch",
    "LayerMask",
    "Nearness",
    "Recent",
    "Refit",
    "RefitWindow",
    "SignatureSpace",
    "VariantRho",
    "balanced_assignment",
    "balanced_kmeans",
    "compare_variants",
    "distinct_reduction",
    "expected_distinct",
    "fit",
    "fit_space",
    "greedy_mask",
    "idf_weights",
    "match_centroids",
    "nearest",
    "refit_recent",
    "signature_rho",
    "vanilla_kmeans",
    "warm_refit",
]
