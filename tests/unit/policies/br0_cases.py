"""Small rounds of BR-0: ranks, requests, and cases by seed."""

import numpy as np

from toolkit.policies import Load, RequestView, WorkerView


def fleet(loads: list[int], free: list[int], slots: int = 16) -> list[WorkerView]:
    return [
        WorkerView("decode", dp_rank=g, load=Load(slots - n, 0, load, 0, 0), slots=slots)
        for g, (load, n) in enumerate(zip(loads, free, strict=True))
    ]


def prompts(sizes: list[int]) -> list[RequestView]:
    return [RequestView(prompt_tokens=size) for size in sizes]


def cases(seed: int) -> list[tuple[list[int], list[int], list[int]]]:
    """(loads, free slots, sizes) of small fleets in balance but for a request or two."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(150):
        count = int(rng.integers(2, 4))
        found.append(
            (
                rng.integers(4000, 8000, count).tolist(),
                rng.integers(0, 4, count).tolist(),
                np.clip(rng.lognormal(6.5, 1.0, int(rng.integers(1, 6))), 16, 8000)
                .astype(int)
                .tolist(),
            )
        )
    return found
