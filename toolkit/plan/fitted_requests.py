"""What placements are fitted to: a profile's fitted requests, all of them or a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from toolkit.placement import Traffic
    from toolkit.profile.placing import Arrays
    from toolkit.profile_folder.schema import Profile

WINDOWS = 128
"""Parts of what was seen, as `toolkit.placement.count` cuts it."""


@dataclass(frozen=True, eq=False)
class FittedRequests:
    """`traffic`: of all of them; `counts` [N, L, E]: how many decode tokens of each request used an
    expert; `by_gpu` [G, L, E]: of the requests that each GPU is to decode, alike ones together."""

    traffic: Traffic
    counts: np.ndarray
    by_gpu: np.ndarray | None = None

    @classmethod
    def of_profile(cls, profile: Profile, arrays: Arrays, gpus: int) -> FittedRequests:
        """`by_gpu` is None where the requests are fewer than GPUs."""
        from toolkit.profile.node_traffic import clusters
        from toolkit.profile.placing import traffic

        counts = arrays["decode_counts"][arrays["held_out"] == 0]
        enough = len(counts) >= gpus
        by_gpu = clusters(profile, arrays, gpus)[-1] if enough else None
        return cls(traffic(profile, arrays), counts, by_gpu)

    def seen(self, count: int, seed: int) -> Traffic:
        """Of so many requests, drawn at random: what a server sees of this traffic in a while.
        Two seeds are two such whiles. ValueError: none, or too few for every layer to be used."""
        import numpy as np

        from toolkit.placement import Traffic

        if count < 1:
            raise ValueError("no request was seen: give at least one")
        source = np.random.default_rng(seed)
        number, parts = len(self.counts), min(WINDOWS, count)
        sizes = np.full(parts, count // parts)
        sizes[: count % parts] += 1
        times = source.multinomial(sizes, np.full(number, 1 / number)).astype(np.float64)
        windows = np.tensordot(times, self.counts.astype(np.float64), axes=1)
        return Traffic(windows.sum(axis=0), self.traffic.affinity, windows if parts > 1 else None)
