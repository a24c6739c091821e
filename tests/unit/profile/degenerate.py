"""A profile of which nearly everything is missing."""

from typing import Any

import numpy as np

from tests.unit.profile import sample
from toolkit.profile_folder.schema import Profile


def degenerate(kind: str) -> tuple[Profile, dict[str, np.ndarray]]:
    size = sample.TINY
    if kind == "one layer":
        size = sample.Size(requests=12, layers=1, experts=8, top_k=2, workers=2, gpus=2, nodes=1)
    if kind == "one worker":
        size = sample.Size(requests=8, layers=2, experts=8, top_k=2, workers=1, gpus=2, nodes=1)
    profile, arrays = sample.build(size)
    change: dict[str, Any] = {}
    if kind == "bare":
        change = {"placements": (), "transfer": None, "steps_columns": ()}
        change["latency"] = profile.latency.model_copy(
            update=dict.fromkeys(("qoe", "distinct", "without_distinct", "prefill"))
        )
        del arrays["steps"], arrays["transfers"]
    if kind == "undefined":
        nothing = dict.fromkeys(("raw", "binary", "idf", "idf_masked", "idf_masked_held_out"))
        change["rho"] = profile.rho.model_copy(update={**nothing, "curve": (), "mask": ()})
        labels = dict.fromkeys(("clustered", "by_domain", "by_language", "by_cell"))
        distinct = profile.centroids.distinct.model_copy(update=labels)
        change["centroids"] = profile.centroids.model_copy(update={"distinct": distinct})
        plain = {"domain": "", "language": ""}
        change["requests"] = tuple(r.model_copy(update=plain) for r in profile.requests)
    if kind == "zero":
        for array in arrays.values():
            array[:] = 0
    if kind == "alike":
        arrays["prefill_counts"][:] = arrays["prefill_counts"][:1]
    if kind == "no requests held out":
        arrays["held_out"][:] = 0
    if kind == "many labels":
        change["requests"] = tuple(
            r.model_copy(update={"domain": f"d{i}"}) for i, r in enumerate(profile.requests)
        )
    if kind == "only linear":
        change["placements"] = profile.placements[:1]
    return profile.model_copy(update=change), arrays
