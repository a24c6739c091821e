"""What the router takes from a profile: the signature space, its requests and its centroids."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.profile_folder import store
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import Profile
from toolkit.signatures.calibration import Floats
from toolkit.signatures.reservoir import Recent
from toolkit.signatures.space import SignatureSpace, normalise

_EACH = 4  # one of so many recent requests is held out


@dataclass(frozen=True, eq=False)
class Requests:
    """Signatures to cluster, `fitted` [N, D], and to judge the clusters by, `judged` [M, D]."""

    fitted: Floats
    judged: Floats


@dataclass(frozen=True, eq=False)
class Calibrated:
    """`requests` are those of the profile: fitted and held out, or all fitted ones where none is
    held out. `centroids` [K, D] belong to decode worker 0, 1, ... of K."""

    profile: Profile
    space: SignatureSpace
    requests: Requests
    centroids: Floats


def calibrated(folder: str) -> Calibrated:
    """Read a profile. ProfileError: it is none, or damaged; says how to mend it."""
    profile, arrays = store.read(folder)
    centroids = normalise(np.array(arrays["centroids"], np.float32, order="C"))
    try:
        space = SignatureSpace(arrays["idf"], profile.rho.mask)
        requests = _requests(space, arrays)
    except ValueError as error:
        raise ProfileError(f"{folder} cannot be used: {error}") from error
    if not np.isfinite(centroids).all():
        raise ProfileError(f"{folder} has centroids that are NaN or infinite: fit it anew")
    return Calibrated(profile, space, requests, centroids)


def of_recent(space: SignatureSpace, recent: Recent, most: int, seed: int) -> Requests:
    """The youngest `most` recent requests, a random quarter of them held out."""
    signatures = np.stack([space.of_kept(counts) for counts in recent.counts[-most:]])
    # Not every fourth one: clients that take turns would be held out whole.
    order = np.random.default_rng(seed).permutation(len(signatures))
    held = order < len(signatures) // _EACH
    return Requests(signatures[~held], signatures[held] if held.any() else signatures)


def _requests(space: SignatureSpace, arrays: dict[str, NDArray[Any]]) -> Requests:
    signatures = space.signatures(arrays["prefill_counts"])
    held = arrays["held_out"].astype(bool)
    return Requests(signatures[~held], signatures[held] if held.any() else signatures)
