"""Profiles of a part of the shipped profile's requests, for routers that are to know no more."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.shared.eldr_rounds import PROFILE
from toolkit import signatures
from toolkit.bench.mix import parse_mix
from toolkit.profile_folder import store
from toolkit.profile_folder.schema import Profile

Arrays = dict[str, np.ndarray]
BY_REQUEST = (
    "prefill_counts", "decode_counts", "prompt_tokens", "output_tokens", "held_out", "cluster",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Part:
    """A profile of some requests. Its statistics, placements and latencies, which no router reads,
    are still those of the profile that it was cut from."""

    profile: Profile
    arrays: Arrays

    @property
    def fitted(self) -> np.ndarray:
        """[N] bool: the requests that are not held out."""
        return self.arrays["held_out"] == 0

    @property
    def vectors(self) -> np.ndarray:
        """Signatures [N, D] in the profile's own space."""
        space = signatures.SignatureSpace(self.arrays["idf"], self.profile.rho.mask)
        return space.signatures(self.arrays["prefill_counts"])

    def requests(self, rows: Sequence[int] | np.ndarray) -> Part:
        """These requests only."""
        arrays = {n: a[rows] if n in BY_REQUEST else a for n, a in self.arrays.items()}
        kept = tuple(self.profile.requests[row] for row in rows)
        data = {
            "requests": len(kept),
            "held_out": int(arrays["held_out"].sum()),
            "prompt_tokens": int(arrays["prompt_tokens"].sum()),
            "output_tokens": int(arrays["output_tokens"].sum()),
            "domains": dict(Counter(request.domain for request in kept)),
            "languages": dict(Counter(request.language for request in kept)),
        }
        changed = {"requests": kept, "data": self.profile.data.model_copy(update=data)}
        return Part(self.profile.model_copy(update=changed), arrays)

    def fitted_anew(self, k: int, seed: int) -> Part:
        """With the weights, the layer mask and the centroids of its own fitted requests."""
        own = {name: self.arrays[name][self.fitted] for name in BY_REQUEST}
        counts, tokens = (own["prefill_counts"], own["decode_counts"]), own["output_tokens"]
        fit = signatures.fit(*counts, tokens, k, seed)
        curve = fit.mask.curve[: len(fit.mask.layers)]
        rho = self.profile.rho.model_copy(update={"mask": fit.mask.layers, "curve": curve})
        profile = self.profile.model_copy(update={"rho": rho})
        arrays = self.arrays | {"idf": np.array(fit.space.weights)}
        return Part(profile, arrays).clustered(fit.clusters, seed)

    def clustered(self, clusters: signatures.Clusters, seed: int) -> Part:
        """With these clusters of its fitted requests."""
        cluster = np.full(len(self.fitted), -1, dtype=np.int32)
        cluster[self.fitted] = clusters.labels
        figures = {
            "k": len(clusters.centroids),
            "bound": clusters.capacity,
            "sizes": tuple(clusters.sizes.tolist()),
            "inertia": clusters.inertia,
            "seed": seed,
        }
        centroids = self.profile.centroids.model_copy(update=figures)
        arrays = self.arrays | {"centroids": clusters.centroids, "cluster": cluster}
        return Part(self.profile.model_copy(update={"centroids": centroids}), arrays)

    def write(self, folder: Path) -> Path:
        """As a profile folder, which is returned."""
        store.write(folder, self.profile, self.arrays)
        return folder


def shipped() -> Part:
    """The whole of `profiles/embedded`."""
    return Part(*store.read(PROFILE))


def of_languages(part: Part, languages: Sequence[str]) -> Part:
    """The requests, fitted and held out, of some languages."""
    rows = [n for n, request in enumerate(part.profile.requests) if request.language in languages]
    return part.requests(rows)


def skewed(part: Part, domains: str, languages: str, seed: int) -> Part:
    """As many of the fitted requests as there are in this mix of languages (`en:3,ru:1`), drawn at
    random; the domains only say which ones take part."""
    fitted, requests = part.fitted, part.profile.requests
    allowed = parse_mix(domains, (r.domain for r in requests), "domain")
    mix = parse_mix(languages, (r.language for r in requests), "language")
    rows: dict[str, list[int]] = {language: [] for language in mix}
    for row, request in enumerate(requests):
        if fitted[row] and request.domain in allowed and request.language in mix:
            rows[request.language].append(row)
    unit = min(len(rows[language]) / weight for language, weight in mix.items())
    source = random.Random(f"calibration-{seed}")
    drawn = [
        row
        for language, weight in mix.items()
        for row in source.sample(rows[language], int(unit * weight))
    ]
    return part.requests(sorted(drawn))
